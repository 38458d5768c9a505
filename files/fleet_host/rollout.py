"""A rollout as a host sees it: taken by its lease, noted in {llm_root}/state/rollout.json, ended.

The lock of a rollout is the leases of its hosts (lease.py). What it is about and how far it came
lies on every host of it, so any machine with the repository can go on with it: the document has
the whole rollout (hosts, options), and golive.json tells what became of it on this host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import durable, engine, events, fields, gateway, gateway_service, hold, layout, lease
from .errors import HostError

if TYPE_CHECKING:
    from pathlib import Path

RUNNING, ENDED = "running", "ended"


def path() -> Path:
    return layout.llm_root() / "state" / "rollout.json"


def read() -> dict[str, Any] | None:
    document = durable.read_json(path())
    return document if isinstance(document, dict) else None


def take(request: dict[str, Any]) -> dict[str, Any]:
    """`rollout take` {lease: as `lease acquire`, rollout: {id, ...}, release: of this host or null}
    -> {lease, taken_over, again}. HostError when another run has the host, or it has changed.

    again: this host knew of this rollout already, which now goes on.
    """
    wanted, rollout = request.get("lease"), request.get("rollout")
    wanted = dict(wanted) if isinstance(wanted, dict) else {}
    rollout = dict(rollout) if isinstance(rollout, dict) else {}
    identity = fields.text(rollout, "id")
    answer = lease.acquire(wanted)
    before = read() or {}
    again = before.get("id") == identity
    owner, machine = fields.text(wanted, "owner"), fields.text(wanted, "machine")
    document = {
        **rollout,
        "owner": owner,
        "machine": machine,
        "began": before.get("began") if again else events.utc_now(),
        "state": RUNNING,
        "result": None,
    }
    durable.write_json(path(), document)
    # A second time is a renewal of the lease, or the answer to a call whose answer was lost.
    if not again or before.get("state") != RUNNING or answer["taken_over"]:
        events.record(
            "rollout goes on" if again else "rollout began", owner, rollout=identity,
            kind=rollout.get("kind"), release=request.get("release"),
        )  # fmt: skip
    return {"lease": answer["lease"], "taken_over": answer["taken_over"], "again": again}


def end(request: dict[str, Any]) -> dict[str, Any]:
    """`rollout end` {run, id, result, release, cause} -> {released, ended}. The lease is given
    back, where `run` has it; what another rollout has written since stays."""
    identity = fields.text(request, "id")
    result = fields.text(request, "result")
    there = read() or {}
    ended = there.get("id") == identity
    if ended:
        durable.write_json(
            path(), {**there, "state": request.get("state") or ENDED, "result": result}
        )
        events.record(
            "rollout ended", str(there.get("owner")), rollout=identity, result=result,
            release=request.get("release"), cause=str(request.get("cause") or "")[:500],
        )  # fmt: skip
    return {**lease.release(request), "ended": ended}


def status(request: dict[str, Any]) -> dict[str, Any]:
    """`rollout status` {engine or null, gateway?: bool} -> {rollout or null, lease, live,
    generation, engine: {current, previous, started, active, golive, hold} or null, gateway:
    {current, service, nginx, answers} or null}."""
    found = lease.status({})
    name = fields.optional_text(request, "engine")
    return {"rollout": read(), **found, "engine": _engine(name) if name else None,
            "gateway": _gateway() if request.get("gateway") else None}  # fmt: skip


def _gateway() -> dict[str, Any]:
    def state(unit: str) -> str:
        try:
            return engine.unit_state(unit)["ActiveState"]
        except HostError:
            return "absent"

    return {
        "current": gateway.linked(),
        "service": state("llm-gateway.service"),
        "nginx": state("nginx.service"),
        "answers": gateway_service.answers(),
    }


def _engine(name: str) -> dict[str, Any]:
    try:
        active = engine.unit_state(f"llm-engine@{name}.service")["ActiveState"]
        at_work = engine.unit_state(f"llm-golive@{name}.service")["ActiveState"]
    except HostError:
        active = at_work = "absent"  # this host was never deployed to
    return {
        "current": engine.linked(name, "current"),
        "previous": engine.linked(name, "previous"),
        "started": engine.read_started(name).get("release"),
        "active": active,
        "golive_active": at_work,
        "golive": durable.read_json(engine.home(name) / "golive.json"),
        "hold": hold.read(name),
    }


def unlock(request: dict[str, Any]) -> dict[str, Any]:
    """`rollout unlock` {run, who} -> {released}: take another's lease away, by its run's name.

    For a person who knows that nobody is at work any more; the event log keeps who it was.
    """
    run, who = fields.text(request, "run"), fields.text(request, "who")
    found = lease.status({})
    held = found["lease"]
    if held is None or held["run"] != run:
        return {"released": False}
    answer = lease.release({"run": run})
    if answer["released"]:
        events.record("lease taken away", who, from_run=run, from_owner=held.get("owner"))
    return answer
