"""An engine that somebody has stopped by hand stays so until somebody starts it by hand.

engines/ENGINE/stopped.json: {who, why, when}. While it is there systemd does not start the unit
(ConditionPathExists=), not even at boot, no go-live runs, and plans refuse the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import durable, engine, events
from .errors import HostError

if TYPE_CHECKING:
    from pathlib import Path


def path(name: str) -> Path:
    return engine.home(name) / "stopped.json"


def read(name: str) -> dict[str, Any] | None:
    """A file that cannot be read counts: it was put there to keep an engine down."""
    if not path(name).exists():
        return None
    document = durable.read_object(path(name))
    return document if document is not None else {}


def keep(name: str, who: str, why: str) -> None:
    durable.make_directories(path(name).parent)
    durable.write_json(path(name), {"who": who, "why": why, "when": events.utc_now()}, mode=0o644)


def end(name: str) -> bool:
    """Whether there was one."""
    there = path(name).exists()
    durable.remove_file(path(name))
    return there


def refuse(name: str) -> None:
    """HostError while it is stopped by hand."""
    there = read(name)
    if there is None:
        return
    who, when = there.get("who") or "somebody", there.get("when") or "an unknown time"
    raise HostError(
        f"engine {name} is stopped by hand",
        f"{who} stopped it at {when}: {there.get('why') or 'no reason is recorded'}.",
        "When it may run again: fleet runbook run INVENTORY put-in HOST; then run the same again.",
    )
