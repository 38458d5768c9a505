"""A torrent of files and a tracker that tells all clients of each other, for the transfer bench."""

from __future__ import annotations

import hashlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

if TYPE_CHECKING:
    from pathlib import Path

PIECE_BYTES = 4 << 20


def bencoded(value: Any) -> bytes:
    if isinstance(value, int):
        return b"i%de" % value
    if isinstance(value, bytes):
        return b"%d:%s" % (len(value), value)
    if isinstance(value, str):
        return bencoded(value.encode())
    if isinstance(value, list):
        return b"l" + b"".join(map(bencoded, value)) + b"e"
    pairs = (bencoded(key) + bencoded(value[key]) for key in sorted(value))
    return b"d" + b"".join(pairs) + b"e"


def torrent_of(source: Path, rows: list[dict[str, Any]], announce: str) -> bytes:
    pieces, rest = [], b""
    for row in rows:
        with (source / row["path"]).open("rb") as file:
            while chunk := file.read(PIECE_BYTES - len(rest)):
                rest += chunk
                if len(rest) == PIECE_BYTES:
                    pieces.append(hashlib.sha1(rest, usedforsecurity=False).digest())
                    rest = b""
    if rest:
        pieces.append(hashlib.sha1(rest, usedforsecurity=False).digest())
    files = [{"length": row["size"], "path": [row["path"]]} for row in rows]
    info = {
        "name": "source", "piece length": PIECE_BYTES, "pieces": b"".join(pieces), "files": files,
    }  # fmt: skip
    return bencoded({"announce": announce, "info": info})


class Tracker:
    """Tells every client of every other one, and counts those that have all."""

    def __init__(self) -> None:
        self.peers: dict[bytes, tuple[int, bool]] = {}
        handler = type("Handler", (_Announce,), {"tracker": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/announce"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def complete(self) -> int:
        return sum(1 for _, whole in self.peers.values() if whole)

    seeders = complete

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Announce(BaseHTTPRequestHandler):
    tracker: Tracker

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query, encoding="latin-1")
        peer = unquote_to_bytes(query["peer_id"][0].encode("latin-1"))
        self.tracker.peers[peer] = (int(query["port"][0]), query.get("left") == ["0"])
        others = b"".join(
            socket.inet_aton("127.0.0.1") + port.to_bytes(2, "big")
            for other, (port, _) in self.tracker.peers.items()
            if other != peer
        )
        body = bencoded({"interval": 1, "min interval": 1, "peers": others})
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
