"""A go-live that ended without its end: what it was trying must not serve, and does not come back.

kill -9, `systemctl stop` and a power cut leave golive.json in a pending phase, and `current` may be
a release that has not passed its gates, or never answered. Where another one served before, the
host goes back to it: at the end of the go-live's unit, and before the engine's next start, which
after a power cut is the boot's. The next go-live begins anew. golive.json then has the phase
"undone", with the cause.
"""

from __future__ import annotations

from typing import Any

from . import binding, durable, engine, events, stopped, systemctl
from .errors import HostError
from .ground import PENDING

UNDONE = "undone"
AT_WORK = ("active", "activating", "reloading")


def ended(request: dict[str, Any]) -> dict[str, Any]:
    """`engine undrain` ENGINE, the go-live unit's ExecStopPost -> {lowered, back_to}.

    systemd runs it however the go-live ended, so kill -9 does not leave its flag behind either. The
    flag stays where going back fails: it keeps clients off until somebody deploys.
    """
    name = engine.name_of(request)
    back = undo(name, "its go-live ended before it was judged: killed, or stopped")
    if back is not None and stopped.read(name) is None and _runs_another(name, back):
        systemctl.call(["restart", "--no-block", f"llm-engine@{name}.service"])
    return {"lowered": engine.lower_drain_flag(name, engine.DRAINED_BY_GO_LIVE), "back_to": back}


def before_start(request: dict[str, Any]) -> dict[str, Any]:
    """`engine settle` ENGINE, the engine unit's first ExecStartPre -> {back_to}. Nothing while a
    go-live is at work, which has asked for this start."""
    name = engine.name_of(request)
    if _interrupted(name) is None:
        return {"back_to": None}
    if systemctl.show(f"llm-golive@{name}.service", ["ActiveState"])["ActiveState"] in AT_WORK:
        return {"back_to": None}
    return {"back_to": undo(name, "its go-live ended before it was judged: the host went down")}


def _interrupted(name: str) -> dict[str, Any] | None:
    document = durable.read_object(engine.home(name) / "golive.json") or {}
    return document if document.get("phase") in PENDING else None


def undo(name: str, cause: str) -> str | None:
    """The release that is current again; None where none had been tried, or none served before."""
    document = _interrupted(name)
    back, to = (document or {}).get("from"), (document or {}).get("to")
    if document is None or not isinstance(back, str) or back == to:
        return None
    if not engine.on_disk(name, back):
        return None
    previous = document.get("previous")
    binding.switch_to(name, back)
    there = isinstance(previous, str) and engine.on_disk(name, previous)
    engine.link(name, "previous", previous if there else None)
    note = {**document, "phase": UNDONE, "was": document["phase"], "cause": cause}
    durable.write_json(engine.home(name) / "golive.json", note)
    events.record(
        "go-live undone", engine=name, release=to, back_to=back, cause=cause,
        run=document.get("run"),
    )  # fmt: skip
    return back


def _runs_another(name: str, release: str) -> bool:
    """Also where it does not run at all: a proof may have stopped it."""
    try:
        state = engine.unit_state(f"llm-engine@{name}.service")["ActiveState"]
    except HostError:
        return False  # there is no unit to start
    return state != "active" or engine.read_started(name).get("release") != release
