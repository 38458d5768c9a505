"""The serve job: this host's wheels over HTTP, for the inventory's other hosts while they install.

Listens on one address, answers the addresses it was given and nobody else, and ends by itself when
nobody has asked for anything for a while. The unit lets no other address through either
(IPAddressAllow=), but a kernel without BPF for cgroups ignores that, so both are needed.
Wheels are no secret: whoever reads one gets what an index gives everybody. The hosts check hashes.
"""

from __future__ import annotations

import functools
import http.server
import ipaddress
import socket
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import durable, fields, jobs, layout, systemctl
from .errors import HostError, SpecError
from .idle_serving import IdleServer

if TYPE_CHECKING:
    from .status import Progress

KEYS = {"directory", "address", "port", "allowed", "idle_seconds"}
JOB = "wheels"
Address = Any  # ipaddress.IPv4Address or IPv6Address; "|" is no type in Python 3.9


class Server(IdleServer):
    """Of one directory, to these addresses."""

    def __init__(self, address: Address, port: int, directory: Path, allowed: set[Address]) -> None:
        self.allowed = allowed
        super().__init__(address, port, functools.partial(Handler, directory=str(directory)))

    def verify_request(self, _request: Any, client_address: Any) -> bool:
        """Whether the client may ask at all; a connection of anybody else is closed unread."""
        client = ipaddress.ip_address(str(client_address[0]).split("%")[0])
        if client in self.allowed:
            return True
        self.refused.add(str(client))
        return False

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """A client that goes away in the middle is no error of ours."""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files of one directory, by GET and HEAD; no listings, nothing hidden."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "llm-wheels"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        self._counted(super().do_GET)

    def do_HEAD(self) -> None:
        self._counted(super().do_HEAD)

    def _counted(self, answer: Any) -> None:
        with self.server.counting:
            self.server.busy += 1
            self.server.asked_at = time.monotonic()
        try:
            answer()
        finally:
            with self.server.counting:
                self.server.busy -= 1
                self.server.asked_at = time.monotonic()

    def end_headers(self) -> None:
        """Pages are asked for again each time: uv would keep one for ten minutes, without the
        wheels that have come since."""
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def list_directory(self, _path: Any) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    def translate_path(self, path: str) -> str:
        found = super().translate_path(path)
        inside = Path(found).resolve()
        base = Path(self.directory).resolve()
        hidden = any(part.startswith(".") for part in Path(path.split("?")[0]).parts)
        return found if not hidden and inside.is_relative_to(base) else f"{base}/.nothing/"

    def copyfile(self, source: Any, outputfile: Any) -> None:
        while chunk := source.read(1 << 20):
            outputfile.write(chunk)
            self.server.asked_at = time.monotonic()
            with self.server.counting:
                self.server.served_bytes += len(chunk)

    def log_message(self, _format: str, *_words: Any) -> None:
        """The journal gets the sum at the end, not a line a wheel."""


def addresses(values: list[str]) -> set[Address]:
    try:
        return {ipaddress.ip_address(value) for value in values}
    except ValueError as error:
        raise SpecError("an address is wrong", f"{error}.", "Give IP addresses.") from error


def run(spec: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{served_bytes, refused: [address], seconds}, once nobody has asked for idle_seconds."""
    fields.refuse_unknown(spec, KEYS, "serve")
    directory = Path(fields.text(spec, "directory"))
    (address,) = addresses([fields.text(spec, "address")])
    port = fields.whole(spec, "port")
    idle_seconds = fields.seconds(spec, "idle_seconds")
    started = time.monotonic()
    if not (directory / "index.html").is_file():
        raise HostError(
            f"there are no wheels to serve in {directory}",
            "it has no index.html, which is written when all wheels are there.",
            "Run the deploy again: it downloads them first.",
        )
    try:
        server = Server(address, port, directory, addresses(fields.texts(spec, "allowed")))
    except OSError as error:
        raise HostError(
            f"wheels cannot be served at {address} port {port}",
            f"{error.strerror}.",
            "The address is this host's in the inventory: if it is one of a NAT or a jump host "
            "and not of this host, use runtime.wheelhouse.url with a server of yours. If another "
            "program has the port, write another runtime.wheelhouse.port.",
        ) from error
    progress.phase("serving", message=f"{directory} at {address} port {port}")
    server.serve_until_idle(idle_seconds, progress)
    return {
        "served_bytes": server.served_bytes,
        "refused": sorted(server.refused),
        "seconds": round(time.monotonic() - started, 1),
    }


def open_for(request: dict[str, Any]) -> dict[str, Any]:
    """`wheels serve` {directory, address, port, allowed, idle_seconds} -> {url, state}.

    Lets the addresses through the unit's filter until the next boot, then starts the job, or joins
    it when it runs with the same request. Returns once it listens.
    """
    fields.refuse_unknown(request, KEYS, "serve")
    (address,) = addresses([fields.text(request, "address")])
    # Itself too: that is how this function sees that it listens.
    allowed = sorted(str(one) for one in {address, *addresses(fields.texts(request, "allowed"))})
    unit = jobs.unit_name("serve", JOB)
    drop_in = layout.run_root() / "systemd/system" / f"{unit}.d" / "hosts.conf"
    text = "[Service]\n" + "".join(f"IPAddressAllow={one}\n" for one in allowed)
    if not drop_in.is_file() or drop_in.read_text() != text:
        durable.make_directories(drop_in.parent)
        durable.write_file(drop_in, text)
        systemctl.call(["daemon-reload"])
    answer = jobs.start({"kind": "serve", "id": JOB, "spec": {**request, "allowed": allowed}})
    wait_until_open(str(address), fields.whole(request, "port"))
    host = f"[{address}]" if address.version == 6 else str(address)
    return {"url": f"http://{host}:{request['port']}/", "state": answer["state"]}


def wait_until_open(address: str, port: int, patience_seconds: float = 30.0) -> None:
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            # From the address itself, which the unit's filter lets through like the others.
            socket.create_connection((address, port), 2.0, source_address=(address, 0)).close()
            return
        except OSError as error:
            state = jobs.status({"kind": "serve", "id": JOB})
            told = state.get("error")
            if state["state"] == "failed" and isinstance(told, dict):
                raise HostError(
                    told["what"], told["why"], told["fix"], told.get("detail", [])
                ) from error
            if time.monotonic() >= deadline:
                raise HostError(
                    f"the wheels' server does not listen at {address} port {port}",
                    f"{error.strerror or error}.",
                    f"See 'journalctl -u {jobs.unit_name('serve', JOB)}' on the host.",
                ) from error
        time.sleep(0.2)
