"""A peer that has every file, says so, and gives it badly."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fakes.model_hub import FakeHub

HANG_SECONDS = 30.0
# Well below a taker's patience for silence.
DRIP_SECONDS = 0.1


@dataclass
class Rogue:
    """mode: wrong (one byte is another), cut (closes in the middle), hang (nothing more after the
    middle), strange (answers what is no answer), nested (JSON deeper than any parser goes), drip
    (an answer without end, a byte at a time), trickle (files a byte at a time)."""

    hub: FakeHub
    mode: str
    address: str
    port: int
    asked: list[str] = field(default_factory=list)
    server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        handler = type("Handler", (_Handler,), {"rogue": self})
        self.server = ThreadingHTTPServer((self.address, self.port), handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()

    def content(self, sha256: str) -> bytes:
        bodies = {hashlib.sha256(body).hexdigest(): body for body in self.hub.files.values()}
        return bodies[sha256]


class _Handler(BaseHTTPRequestHandler):
    rogue: Rogue

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        rogue, parts = self.rogue, self.path.split("/")
        if len(parts) == 3:
            files = [hashlib.sha256(body).hexdigest() for body in rogue.hub.files.values()]
            told = {"files": files, "coming": [], "pulling": False, "uploads": 0}
            body = json.dumps(told).encode()
            if rogue.mode == "drip":
                self.drip(body + b" " * 100_000)
                return
            odd = {"strange": b"[]", "nested": b"[" * 500_000}
            self.answer(odd.get(rogue.mode, body))
            return
        rogue.asked.append(parts[3])
        body = rogue.content(parts[3])
        first = int(self.headers.get("Range", "bytes=0-")[6:-1])
        if rogue.mode == "wrong":
            body = body[:-1] + bytes([body[-1] ^ 0xFF])
        body = body[first:]
        if rogue.mode == "trickle":
            self.drip(body)
            return
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if rogue.mode == "wrong" else body[: len(body) // 2])
        if rogue.mode == "hang":
            time.sleep(HANG_SECONDS)

    def drip(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            for byte in body:
                self.wfile.write(bytes([byte]))
                time.sleep(DRIP_SECONDS)

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
