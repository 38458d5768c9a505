"""An organisation's own auth service: HTTPS under a CA of its own, and a name server."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "auth.example.test"


class AuthService:
    """`status` is what it answers; `seen` keeps each request's headers."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.status = 200
        self.delay_seconds = 0.0
        self.seen: list[dict[str, str]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.seen.append(
                    {"path": self.path} | {k.lower(): v for k, v in self.headers.items()}
                )
                time.sleep(service.delay_seconds)
                self.send_response(service.status)
                self.send_header("X-Key-Id", 'ours-7"\\\x01')
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.names: list[str | None] = []
        context.sni_callback = lambda _socket, name, _context: self.names.append(name)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = int(self.server.server_address[1])
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@contextlib.contextmanager
def name_server(address: str | None) -> Iterator[int]:
    """Answers each query for an A record with `address`, or not at all; the UDP port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.bind(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                try:
                    query, client = channel.recvfrom(512)
                except OSError:
                    return
                if not query:
                    return
                if address is not None:
                    with contextlib.suppress(OSError):
                        channel.sendto(_answer(query, address), client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = int(channel.getsockname()[1])
        try:
            yield port
        finally:
            channel.sendto(b"", ("127.0.0.1", port))
            thread.join()


def _answer(query: bytes, address: str) -> bytes:
    """RFC 1035: the query's identity and question, and for type A one record."""
    end = query.index(b"\0", 12) + 5
    question = query[12:end]
    is_a = question[-4:] == b"\x00\x01\x00\x01"
    header = query[:2] + struct.pack(">HHHHH", 0x8180, 1, int(is_a), 0, 0)
    record = struct.pack(">HHHIH", 0xC00C, 1, 1, 60, 4) + socket.inet_aton(address)
    return header + question + (record if is_a else b"")
