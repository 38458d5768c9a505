"""The hub's HTTP server: models as ModelScope serves them, wheels as pip's find-links wants them.

Interface: what the modelscope client 1.40.2 was seen to ask for. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import io
import json
import re
import socket
import socketserver
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import parse_qs, quote, unquote, urlsplit

from lab.hub import listing, store
from lab.hub.faults import LISTING, REVISIONS, Fault, FaultBoard
from lab.hub.places import models_directory, wheels_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_MODEL_ROUTE = re.compile(r"/api/v1/models/([^/]+/[^/]+)/(repo/files|repo|revisions)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_BLOCK_BYTES = 256 * 1024
# Longer than any client's read time-out in the tests, and an end all the same.
_STALL_SECONDS = 600


@dataclass
class Hub:
    """What every request needs: where things are, the faults, a line for the log, the end."""

    directory: Path
    log: Callable[[str], None] = lambda _line: None
    board: FaultBoard = field(default_factory=FaultBoard)
    stopping: threading.Event = field(default_factory=threading.Event)


class HubServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], hub: Hub) -> None:
        self.hub = hub
        super().__init__(address, HubHandler)

    def server_bind(self) -> None:
        # HTTPServer's own would look its name up: seconds where DNS does not answer.
        socketserver.TCPServer.server_bind(self)
        host, port = self.socket.getsockname()[:2]
        self.server_name, self.server_port = str(host), int(port)

    def shutdown(self) -> None:
        self.hub.stopping.set()
        super().shutdown()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A client that goes away is what many tests do; anything else is a mistake of ours."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            self.hub.log(f"{client_address[0]} failed\n{traceback.format_exc()}")


class HubHandler(BaseHTTPRequestHandler):
    server: HubServer
    server_version = "fleet-lab-hub"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 120
    _sent_bytes = 0

    def log_message(self, format: str, *args: Any) -> None:
        """The hub writes its own line a request, in `_log`."""

    def do_GET(self) -> None:
        self._route()

    def do_HEAD(self) -> None:
        self._route()

    def _route(self) -> None:
        url = urlsplit(self.path)
        path = url.path.removeprefix("/cdn")
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        if match := _MODEL_ROUTE.fullmatch(path):
            model_id = unquote(match[1])
            if match[2] == "repo":
                file_path = query.get("FilePath", "")
                self._guard(model_id, file_path, lambda: self._file(model_id, query))
            elif match[2] == "repo/files":
                self._guard(model_id, LISTING, lambda: self._listing(model_id, query))
            else:
                self._guard(model_id, REVISIONS, lambda: self._revisions(model_id))
        elif path == "/api/v1/repos/internalAccelerationInfo":
            self._json(200, listing.success({"InternalRegionQueryAddress": ""}), path)
        elif path == "/wheels/" or path == "/wheels":
            self._wheels_page()
        elif path.startswith("/wheels/"):
            self._wheel(unquote(path.removeprefix("/wheels/")))
        elif path == "/health":
            self._bytes(200, b"ok\n", "text/plain", path)
        else:
            self._json(404, listing.failure(404, f"no such page: {path}"), path)

    def _guard(self, model_id: str, path: str, answer: Callable[[], None]) -> None:
        """Faults that hit any request about a model, and names that do not exist."""
        board = self.server.hub.board
        for fault in board.lasting("token", model_id):
            if not self.path.startswith("/cdn/") and self._token() != fault.value:
                self._json(401, listing.failure(401, "a valid token is required"), path)
                return
        if fault_found := board.take("error", model_id, path):
            status = int(fault_found.value or 500)
            self._json(status, listing.failure(status, "switched on by a test"), path)
            return
        try:
            answer()
        except store.UnknownModelError:
            self._json(404, listing.failure(404, f"no model {model_id}"), path)
        except store.UnknownRevisionError as error:
            self._json(404, listing.failure(404, f"no such revision: {error}"), path)

    def _token(self) -> str:
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        cookie = re.search(r"m_session_id=([^;]+)", self.headers.get("Cookie", ""))
        return bearer or (cookie[1] if cookie else "")

    def _revision(self, model_id: str, name: str) -> store.Revision:
        board = self.server.hub.board
        for fault in board.lasting("no_revision", model_id):
            if fault.matches(model_id, name):
                raise store.UnknownRevisionError(f"{model_id} at {name}")
        models = models_directory(self.server.hub.directory)
        return store.revision(models, model_id, board.moved(model_id, name))

    def _listing(self, model_id: str, query: dict[str, str]) -> None:
        board = self.server.hub.board
        name = query.get("Revision", store.DEFAULT_BRANCH)
        found = self._revision(model_id, name)
        faults = board.listing_faults(model_id)
        recursive = query.get("Recursive", "").lower() == "true"
        shown = listing.page(listing.entries(found, faults), query.get("Root", ""), recursive)
        for fault in faults:
            if fault.kind == "moves" and fault.matches(model_id, name):
                board.move(model_id, name, str(fault.value))
        self._json(200, listing.success({"Files": shown, "IsVisual": 0}), LISTING)

    def _revisions(self, model_id: str) -> None:
        branches = store.branches(models_directory(self.server.hub.directory), model_id)
        self._json(200, listing.success(listing.revisions(branches)), REVISIONS)

    def _file(self, model_id: str, query: dict[str, str]) -> None:
        board = self.server.hub.board
        path = query.get("FilePath", "")
        found = self._revision(model_id, query.get("Revision", store.DEFAULT_BRANCH))
        if not self.path.startswith("/cdn/"):
            redirect = board.take("redirect", model_id, path)
            if redirect:
                base = str(redirect.value or f"http://{self.headers.get('Host')}/cdn")
                self._empty(302, path, {"Location": base.rstrip("/") + self.path})
                return
        known = {file.path: file for file in found.files}
        if path in known:
            with (found.directory / path).open("rb") as stream:
                self._content(model_id, path, stream, known[path].size_bytes, known[path].sha256)
        elif self._is_synthetic(model_id, path):
            content = listing.synthetic_content(path)
            digest = hashlib.sha256(content).hexdigest()
            self._content(model_id, path, io.BytesIO(content), len(content), digest)
        else:
            self._json(404, listing.failure(404, f"no file {path}"), path)

    def _is_synthetic(self, model_id: str, path: str) -> bool:
        board = self.server.hub.board
        extra = {fault.value for fault in board.lasting("extra", model_id)}
        filler = bool(board.lasting("many", model_id)) and path.startswith("filler/")
        return path in extra or filler

    def _content(
        self, model_id: str, path: str, stream: BinaryIO, size_bytes: int, sha256: str
    ) -> None:
        """A file or the part of it that Range asks for, with the faults of its path."""
        match = _RANGE.fullmatch(self.headers.get("Range", "").strip())
        first = int(match[1]) if match else 0
        last = min(int(match[2]), size_bytes - 1) if match and match[2] else size_bytes - 1
        if match and (first > last or first >= size_bytes):
            self._empty(416, path, {"Content-Range": f"bytes */{size_bytes}"})
            return
        length = last - first + 1
        headers = {
            "Content-Length": str(length),
            "Content-Type": "application/octet-stream",
            "Accept-Ranges": "bytes",
            "ETag": f'"{sha256}"',
        }
        if match:
            headers["Content-Range"] = f"bytes {first}-{last}/{size_bytes}"
        status = 206 if match else 200
        self._head(status, headers, path)
        if self.command == "HEAD":
            self._log(status)
            return
        stream.seek(first)
        try:
            self._send(model_id, path, stream, length)
        finally:
            self._log(status)

    def _send(self, model_id: str, path: str, stream: BinaryIO, length: int) -> None:
        """The body, with `drop`, `stall`, `slow` and `corrupt`; counts in _sent_bytes."""
        hub = self.server.hub
        end = hub.board.take("drop", model_id, path)
        stall = None if end else hub.board.take("stall", model_id, path)
        slow = hub.board.take("slow", model_id, path)
        corrupt = hub.board.take("corrupt", model_id, path)
        cut = _cut(end or stall, length)
        block = _BLOCK_BYTES if slow is None else max(1, int(slow.value or 1) // 10)
        started = time.monotonic()
        while (sent := self._sent_bytes) < cut:
            content = stream.read(min(block, cut - sent))
            if not content:
                break
            middle = length // 2 - sent
            if corrupt and 0 <= middle < len(content):
                spoiled = bytes([content[middle] ^ 0xFF])
                content = content[:middle] + spoiled + content[middle + 1 :]
            self._write(content, path)
            if slow:
                ahead = self._sent_bytes / int(slow.value or 1) - (time.monotonic() - started)
                if hub.stopping.wait(max(0.0, ahead)):
                    break
        if stall:
            self._hold_open()
        if self._sent_bytes < length:
            self.close_connection = True

    def _hold_open(self) -> None:
        """Send nothing until the client goes away or the hub ends."""
        deadline = time.monotonic() + _STALL_SECONDS
        self.connection.settimeout(0.2)
        while time.monotonic() < deadline and not self.server.hub.stopping.is_set():
            try:
                if not self.connection.recv(1024):
                    return
            except TimeoutError:
                continue

    def _wheels_page(self) -> None:
        lines = ["<!DOCTYPE html><title>wheels</title>"]
        for path in sorted(wheels_directory(self.server.hub.directory).glob("*.whl")):
            link = f"{quote(path.name)}#sha256={store.sha256_of(path)}"
            lines.append(f'<a href="/wheels/{link}">{html.escape(path.name)}</a><br>')
        body = "\n".join(lines).encode() + b"\n"
        self._bytes(200, body, "text/html; charset=utf-8", "@wheels")

    def _wheel(self, name: str) -> None:
        directory = wheels_directory(self.server.hub.directory)
        if name not in {path.name for path in directory.glob("*.whl")}:
            self._json(404, listing.failure(404, f"no wheel {name}"), "@wheels")
            return
        path = directory / name
        with path.open("rb") as stream:
            self._content("@wheels", name, stream, path.stat().st_size, store.sha256_of(path))

    def _json(self, status: int, content: object, path: str) -> None:
        body = json.dumps(content).encode()
        self._bytes(status, body, "application/json; charset=utf-8", path)

    def _bytes(self, status: int, body: bytes, content_type: str, path: str) -> None:
        self._head(status, {"Content-Type": content_type, "Content-Length": str(len(body))}, path)
        if self.command != "HEAD":
            self._write(body, path)
        self._log(status)

    def _empty(self, status: int, path: str, headers: dict[str, str]) -> None:
        self._head(status, {**headers, "Content-Length": "0"}, path)
        self._log(status)

    # Both count before they send: who has the answer finds it in the counters.
    def _head(self, status: int, headers: dict[str, str], path: str) -> None:
        self._sent_bytes = 0
        self.server.hub.board.count_request(path, status)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _write(self, content: bytes, path: str) -> None:
        self.server.hub.board.count_bytes(path, len(content))
        self.wfile.write(content)
        self._sent_bytes += len(content)

    def _log(self, status: int) -> None:
        part = self.headers.get("Range", "-")
        what = f"{self.command} {self.path} range={part} -> {status}, {self._sent_bytes} bytes"
        self.server.hub.log(f"{self.client_address[0]} {what}")


def _cut(fault: Fault | None, length: int) -> int:
    """After how many bytes of `length` a `drop` or `stall` happens; `length` for no fault."""
    if fault is None:
        return length
    return min(length, int(fault.value) if fault.value is not None else length // 2)


@contextlib.contextmanager
def running(hub: Hub, address: tuple[str, int] = ("127.0.0.1", 0)) -> Iterator[str]:
    """Serve in a thread of this process; yields the base URL. For tests."""
    server = HubServer(address, hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        host, port = server.socket.getsockname()[:2]
        yield f"http://{host}:{port}"
    finally:
        server.shutdown()
        with contextlib.suppress(OSError):
            server.socket.shutdown(socket.SHUT_RDWR)
        server.server_close()
        thread.join(5)
