"""Opening and closing this host's part in a fan-out, as root: `fan-out open`, `fan-out closed`."""

from __future__ import annotations

import http.client
import time
from typing import TYPE_CHECKING, Any

from . import durable, fields, jobs, layout, peers, share_state, sharing, systemctl
from .errors import HostError, SpecError
from .share_server import allowed_addresses
from .wheel_server import addresses

if TYPE_CHECKING:
    from pathlib import Path

JOB = "models"
KEYS = {"model", "name", "rank", "pulling", "token", "peers", "allowed", "rate_bytes_per_second",
        "address", "port", "idle_seconds"}  # fmt: skip
# What `fan-out closed` leaves: a run may have written it while the server of the run before ended.
YOUNG_SECONDS = 30.0
TRIES = 3


def open_for(request: dict[str, Any]) -> dict[str, Any]:
    """`fan-out open` KEYS -> {state: open|closed|nothing, why, published}.

    nothing: this host neither has the model nor is going to pull it, so it listens to nobody.
    closed: it could not be opened, for the reason in why; it can take from others all the same.
    address: null where none of this host is known.
    """
    fields.refuse_unknown(request, KEYS, "fan-out")
    wanted = sharing.from_request(request)
    addresses(list(wanted.allowed))  # refuses what is none before anything is written
    published = share_state.is_published(wanted.model)
    if not wanted.pulling and not published:
        return {"state": "nothing", "why": "it does not have the model", "published": False}
    group = (layout.llm_root() / "jobs").stat().st_gid
    sharing.write(sharing.joined(sharing.read(wanted.model), wanted), group)
    address = fields.optional_text(request, "address")
    if address is None:
        return {"state": "closed", "why": "its address is not known", "published": published}
    spec = {
        "address": address,
        "port": fields.whole(request, "port"),
        "idle_seconds": fields.seconds(request, "idle_seconds"),
    }
    try:
        let_through(address)
        listen(wanted, spec)
    except HostError as error:
        if isinstance(error, SpecError):
            raise
        why = f"{error.what}: {error.why} {error.fix}"
        return {"state": "closed", "why": why, "published": published}
    return {"state": "open", "why": "", "published": published}


def let_through(own_address: str) -> None:
    """The addresses that the unit's filter lets through, until the server closes or the host boots.
    Its own too: that is how the opening sees that it listens."""
    found = {*addresses([own_address]), *allowed_addresses()}
    text = "[Service]\n" + "".join(f"IPAddressAllow={one}\n" for one in sorted(map(str, found)))
    path = drop_in()
    if not path.is_file() or path.read_text() != text:
        durable.make_directories(path.parent)
        durable.write_file(path, text)
        systemctl.call(["daemon-reload"])


def drop_in() -> Path:
    unit = jobs.unit_name("share", JOB)
    return layout.run_root() / "systemd/system" / f"{unit}.d" / "hosts.conf"


def listen(wanted: sharing.Sharing, spec: dict[str, Any]) -> None:
    """Start the server or join it, until it answers. HostError."""
    for attempt in range(TRIES):
        jobs.start({"kind": "share", "id": JOB, "spec": spec})
        try:
            wait_until_open(wanted, str(spec["address"]), int(spec["port"]))
        except Ended:
            # It was about to end when it was joined.
            if attempt == TRIES - 1:
                raise
        else:
            return


class Ended(HostError):
    """The server has ended before it answered."""


def wait_until_open(
    wanted: sharing.Sharing, address: str, port: int, patience_seconds: float = 30.0
) -> None:
    deadline = time.monotonic() + patience_seconds
    self_peer = sharing.Peer(wanted.name, wanted.rank, address, port)
    while True:
        try:
            # From the address itself, which the unit's filter lets through like the others.
            peers.ask(self_peer, wanted.model, wanted.tokens, source=address)
            return
        except (OSError, http.client.HTTPException, peers.PeerFailed) as error:
            state = jobs.status({"kind": "share", "id": JOB})
            told = state.get("error")
            if state["state"] == "failed" and isinstance(told, dict):
                raise HostError(
                    told["what"], told["why"], told["fix"], told.get("detail", [])
                ) from error
            if state["state"] == "done":
                raise Ended("the server ended", "it was idle.", "Run it again.") from error
            if time.monotonic() >= deadline:
                raise HostError(
                    f"the server of models does not answer at {address} port {port}",
                    f"{error}.",
                    f"See 'journalctl -u {jobs.unit_name('share', JOB)}' on the host.",
                ) from error
        time.sleep(0.2)


def closed(_request: dict[str, Any]) -> dict[str, Any]:
    """`fan-out closed`, the server's unit as it ends (ExecStopPost=) -> {removed: count}.

    The runs' secrets and the filter's holes go with the server. What is young stays: the next run
    has just written it, and starts a server of its own.
    """
    now = time.time()
    removed = 0
    for path in sorted(sharing.directory().glob("*.json")):
        if now - path.stat().st_mtime >= YOUNG_SECONDS:
            durable.remove_file(path)
            removed += 1
    if not list(sharing.directory().glob("*.json")):
        durable.remove_file(drop_in())
    return {"removed": removed}
