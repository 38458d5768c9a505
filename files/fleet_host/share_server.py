"""The share job: this host's verified model files over HTTP, for the inventory's other hosts.

Answers the addresses it was told of, and of those only requests that prove to know a run's secret
(sharing.py). The unit lets no other address through either (IPAddressAllow=), but a kernel without
BPF for cgroups ignores that, so both are needed. It ends by itself once nobody has asked for a
while: pulls ask all hosts as long as they run, so it is open exactly as long as somebody pulls.

  GET /OWNER--NAME/REVISION          {files: [sha256], uploads, ...share_state.read}
  GET /OWNER--NAME/REVISION/SHA256   the file; Range: bytes=N- goes on in the middle
"""

from __future__ import annotations

import http.server
import ipaddress
import json
import os
import re
import socketserver
import threading
import time
from collections import Counter
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, BinaryIO

from . import durable, fields, share_state, sharing
from .errors import HostError
from .idle_serving import IdleServer
from .integrity import Stat
from .wheel_server import addresses

if TYPE_CHECKING:
    from .status import Progress

KEYS = {"address", "port", "idle_seconds"}
# Fewer at a time are sooner done, and each that is done serves others: with four, the 99 others of
# a hundred hosts have a file after three rounds (5^3 > 100).
MOST_UPLOADS = 4
# How long a host counts as waiting after it was turned away: a few of its tries.
WAITING_SECONDS = 6.0
PIECE_BYTES = 4 << 20
RANGE = re.compile(r"bytes=(\d+)-")
TARGET = re.compile(r"/([\w.-]+--[\w.-]+/[\w.-]+?)(?:/([0-9a-f]{64}))?", re.ASCII)
# How long a receiver may take nothing before its connection is closed, and its place is free.
CLIENT_SECONDS = 30


class Meter:
    """Bytes a second over all uploads together, in pieces; 0.1 s may be sent ahead."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def take(self, count: int, rate: int | None) -> None:
        """Wait until so many bytes may be sent."""
        if not rate:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - 0.1) + count / rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)


class Slots:
    """Who is served now. While others wait, nobody has more than one: the sooner several hosts
    have something, the sooner they serve the rest. count: all that are served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._serving: Counter[str] = Counter()
        self.count = 0
        self._waiting: dict[str, float] = {}

    def take(self, client: str) -> bool:
        now = time.monotonic()
        with self._lock:
            others = (
                at for one, at in self._waiting.items() if one != client and not self._serving[one]
            )
            waited_for = any(now - at < WAITING_SECONDS for at in others)
            if self.count >= MOST_UPLOADS or (waited_for and self._serving[client]):
                self._waiting[client] = now
                return False
            self._waiting.pop(client, None)
            self._serving[client] += 1
            self.count += 1
            return True

    def give_back(self, client: str) -> None:
        with self._lock:
            self._serving[client] -= 1
            self.count -= 1


class Server(IdleServer):
    """As idle_serving's, of proven requests alone; slots: the files under way."""

    request_queue_size = 256

    def __init__(self, address: Any, port: int) -> None:
        self.unproven: set[str] = set()
        self.slots = Slots()
        self.meter = Meter()
        super().__init__(address, port, Handler)

    def server_bind(self) -> None:
        # HTTPServer's own would look its name up: seconds where DNS does not answer.
        socketserver.TCPServer.server_bind(self)
        host, port = self.socket.getsockname()[:2]
        self.server_name, self.server_port = str(host), int(port)

    def verify_request(self, _request: Any, client_address: Any) -> bool:
        """Whether the client may ask at all; a connection of anybody else is closed unread."""
        client = ipaddress.ip_address(str(client_address[0]).split("%")[0])
        if client in allowed_addresses():
            return True
        self.refused.add(str(client))
        return False

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """A client that goes away in the middle is no error of ours."""


def allowed_addresses() -> set[Any]:
    """Of all models that this host takes part in, read anew: a further run may have added some."""
    found: set[Any] = set()
    for path in sharing.directory().glob("*.json"):
        document = durable.read_object(path)
        rows = document.get("allowed") if document else None
        found |= addresses([str(row) for row in rows]) if isinstance(rows, list) else set()
    return found


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "llm-share"
    sys_version = ""
    timeout = CLIENT_SECONDS

    def do_GET(self) -> None:
        match = TARGET.fullmatch(self.path)
        found = sharing.read(match[1]) if match else None
        offset = RANGE.fullmatch(self.headers.get("Range", ""))
        first = int(offset[1]) if offset else 0
        proof = self.headers.get("Authorization", "")
        if match is None or found is None or not sharing.is_proven(
            proof, found.tokens, self.path, first
        ):  # fmt: skip
            # The same for what is not there: whoever has no secret learns nothing.
            self.server.unproven.add(str(self.client_address[0]))
            self._answer(HTTPStatus.FORBIDDEN, {})
            return
        with self.server.counting:
            self.server.busy += 1
            self.server.asked_at = time.monotonic()
        try:
            if match[2] is None:
                self._tell(found)
            else:
                self._give(found, match[2], first)
        finally:
            with self.server.counting:
                self.server.busy -= 1
                self.server.asked_at = time.monotonic()

    def _tell(self, found: sharing.Sharing) -> None:
        state = share_state.read(found.model, opened_at=found.opened_at, expected=found.pulling)
        files = sorted(share_state.given(found.model))
        told = {"files": files, "uploads": self.server.slots.count, **state}
        self._answer(HTTPStatus.OK, told)

    def _give(self, found: sharing.Sharing, sha256: str, first: int) -> None:
        client = str(self.client_address[0])
        if not self.server.slots.take(client):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {})
            return
        try:
            self._give_file(found, sha256, first)
        finally:
            self.server.slots.give_back(client)

    def _give_file(self, found: sharing.Sharing, sha256: str, first: int) -> None:
        given = share_state.given(found.model).get(sha256)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(given.path, flags) if given else -1
        except OSError:
            descriptor = -1
        if given is None or descriptor < 0:
            self._answer(HTTPStatus.NOT_FOUND, {})
            return
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor
            size = given.stat.size_bytes
            seen = os.fstat(descriptor)
            now = Stat(seen.st_size, seen.st_mtime_ns, seen.st_ino, seen.st_ctime_ns)
            # Published meanwhile: the chmod and the rename have set another ctime.
            if not given.stat.same(now, but_ctime=True) or first > size:
                self._answer(HTTPStatus.NOT_FOUND, {})
                return
            self.send_response(HTTPStatus.PARTIAL_CONTENT if first else HTTPStatus.OK)
            self.send_header("Content-Length", str(size - first))
            self.end_headers()
            self._send(found, file, first, size)

    def _send(self, found: sharing.Sharing, file: BinaryIO, first: int, size: int) -> None:
        rate = found.rate_bytes_per_second
        # A tenth of a second's worth, so that a slow rate is steady too.
        piece = min(PIECE_BYTES, max(64 << 10, rate // 10)) if rate else PIECE_BYTES
        while first < size:
            count = min(piece, size - first)
            self.server.meter.take(count, rate)
            sent = self.connection.sendfile(file, first, count)
            if not sent:
                self.close_connection = True  # cut meanwhile: the receiver sees it end early
                return
            first += sent
            with self.server.counting:
                self.server.served_bytes += sent
                self.server.asked_at = time.monotonic()

    def _answer(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, _format: str, *_words: Any) -> None:
        """The journal gets the sum at the end, not a line a request."""


def run(spec: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{served_bytes, refused: [address], unproven: [address], seconds}, once nobody has asked for
    idle_seconds."""
    fields.refuse_unknown(spec, KEYS, "share")
    (address,) = addresses([fields.text(spec, "address")])
    port, idle_seconds = fields.whole(spec, "port"), fields.seconds(spec, "idle_seconds")
    started = time.monotonic()
    try:
        server = Server(address, port)
    except OSError as error:
        raise HostError(
            f"the model cannot be shared at {address} port {port}",
            f"{error.strerror}.",
            "The address is this host's in the inventory: if it is one of a NAT or a jump host and "
            "not of this host, write the host's own as storage_address. If another program has the "
            "port, write another model.fan_out.port.",
        ) from error
    progress.phase("sharing", message=f"models at {address} port {port}")
    server.serve_until_idle(idle_seconds, progress)
    if server.refused or server.unproven:
        progress.log(f"turned away: {', '.join(sorted(server.refused | server.unproven))}")
    return {
        "served_bytes": server.served_bytes,
        "refused": sorted(server.refused),
        "unproven": sorted(server.unproven),
        "seconds": round(time.monotonic() - started, 1),
    }
