"""Stopping an engine by hand and starting it again: what runbooks do beside draining."""

from __future__ import annotations

import contextlib
from typing import Any

from . import (
    durable,
    engine,
    events,
    fields,
    gpu_reset,
    probe,
    service,
    snapshot,
    stopped,
    systemctl,
)
from .errors import HostError

STOP_SECONDS = 900.0
ANSWER_SECONDS = 30.0


def stop(request: dict[str, Any]) -> dict[str, Any]:
    """`service stop` {engine, by, reason, now} -> {changed, drain}. Drained by hand until `service
    undrain` or a reboot; stopped until `service start`, through reboots, deploys and rollouts.

    now: without waiting for what runs, a go-live included, which is ended first: it would start the
    engine again. Else HostError while a go-live is at work.
    """
    name, by = engine.name_of(request), fields.text(request, "by")
    unit, golive = f"llm-engine@{name}.service", f"llm-golive@{name}.service"
    now = request.get("now") is True
    if not now and _state(golive) in ("active", "activating", "deactivating"):
        raise HostError(
            f"engine {name} is being switched", f"{golive} is at work.", "Wait for its end."
        )
    reason = fields.text(request, "reason")
    # First of all: what ends a go-live would start the engine of the release before it.
    stopped.keep(name, by, reason)
    drained = service.drain({"engine": name, "by": by, "reason": reason, "wait_seconds": 0})
    if now:
        systemctl.call(["stop", "--no-block", golive])
    ran = _state(unit) not in ("inactive", "failed", "")
    if ran and now:
        systemctl.call(["stop", "--no-block", unit])
        with contextlib.suppress(HostError):  # it may be down by now; the stop below tells
            systemctl.call(["kill", "--signal=KILL", unit])
    if ran:
        systemctl.call(["stop", unit], STOP_SECONDS)
        events.record("engine stopped", by, engine=name, at_once=now)
    return {"changed": ran, "drain": drained["drain"]}


def start(request: dict[str, Any]) -> dict[str, Any]:
    """`service start` {engine, by} -> {changed}. Does not wait; `service answers` tells."""
    name, by = engine.name_of(request), fields.text(request, "by")
    unit = f"llm-engine@{name}.service"
    engine.unit_state(unit)
    gpu_reset.start_stopped()
    ended = stopped.end(name)
    if _state(unit) in ("active", "activating", "reloading"):
        return {"changed": ended}
    # After too many deaths systemd refuses a start until it is told to forget them.
    systemctl.call(["reset-failed", unit])
    systemctl.call(["start", "--no-block", unit])
    events.record("engine started by hand", by, engine=name)
    return {"changed": True}


def answers(request: dict[str, Any]) -> dict[str, Any]:
    """`service answers` {engine} -> {answers, active, why, drain, model}: by one real completion.
    model: the served name of what is live, None where nothing is."""
    name = engine.name_of(request)
    active = _state(f"llm-engine@{name}.service")
    release = engine.linked(name, "current")
    document = durable.read_object(
        engine.release_directory(name, release or "none") / "release.json"
    )
    model = (document or {}).get("served_model_name")
    why = "" if model else "it has no release"
    if model:
        asked = probe.Probe("/v1/completions", str(model), "Hello", 4)
        try:
            probe.completion(engine.socket_path(name), asked, ANSWER_SECONDS)
        except (probe.NotReadyError, probe.RejectedError) as error:
            why = str(error)
    flag = snapshot.drain_flag(str(engine.drain_flag(name)))
    return {
        "answers": not why, "active": active, "why": why, "drain": flag,
        "model": str(model) if model else None,
    }  # fmt: skip


def _state(unit: str) -> str:
    return systemctl.show(unit, ["ActiveState"])["ActiveState"]
