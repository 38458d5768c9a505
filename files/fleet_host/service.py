"""Taking an engine out of service and in again by hand, and reading what it said."""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import Any

from . import durable, engine, events, fields, probe, snapshot, stopped, systemctl
from .errors import HostError

MOST_LINES = 10_000
POLL_SECONDS = 0.5
# By what `logs` is asked for: units of systemd's journal.
UNITS = {
    "engine": "llm-engine@{name}.service",
    "golive": "llm-golive@{name}.service",
    "watch": "llm-watch@{name}.service",
    "gateway": "llm-gateway.service",
    "nginx": "nginx.service",
}


def drain(request: dict[str, Any]) -> dict[str, Any]:
    """`service drain` {engine, by, reason, wait_seconds} -> {changed, drain, running}.

    New requests get 503 with Retry-After until `service undrain`; a deploy and a go-live leave the
    flag alone. running: requests that run or wait after wait_seconds at the most, None where the
    engine does not tell or does not answer.
    """
    name, by = engine.name_of(request), fields.text(request, "by")
    reason = fields.text(request, "reason")
    flag = engine.drain_flag(name)
    there = snapshot.drain_flag(str(flag))
    changed = there is None or there.get("by") == engine.DRAINED_BY_GO_LIVE
    if changed:
        # Also over a go-live's flag, which would be lowered at that one's end.
        flag.parent.mkdir(parents=True, exist_ok=True)
        temporary = flag.with_name(f".{name}.{os.getpid()}")
        document = {"by": by, "reason": reason, "since": int(time.time())}
        temporary.write_text(json.dumps(document) + "\n")
        temporary.replace(flag)
        events.record("drained", by, engine=name, reason=reason)
    deadline = time.monotonic() + fields.whole(request, "wait_seconds", 0)
    running = _running(name)
    while running and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        running = _running(name)
    return {"changed": changed, "drain": snapshot.drain_flag(str(flag)), "running": running}


def _running(name: str) -> float | None:
    try:
        return probe.load(engine.socket_path(name))
    except probe.NotReadyError:
        return None


def undrain(request: dict[str, Any]) -> dict[str, Any]:
    """`service undrain` {engine, by} -> {changed, drain: what it was}. HostError while a go-live
    is at work, and for an engine that is stopped by hand."""
    name, by = engine.name_of(request), fields.text(request, "by")
    flag = engine.drain_flag(name)
    there = snapshot.drain_flag(str(flag))
    if there is None:
        return {"changed": False, "drain": None}
    stopped.refuse(name)
    unit = f"llm-golive@{name}.service"
    if _at_work(unit):
        # Also where the flag is an operator's: it may be all that keeps clients from a release that
        # has not passed its gates.
        raise HostError(
            f"engine {name} is being switched",
            f"{unit} is at work, and lets nobody in before its release is judged.",
            f"Wait for it: 'journalctl -fu {unit}' on the host.",
        )
    flag.unlink(missing_ok=True)
    events.record("undrained", by, engine=name, was=there)
    return {"changed": True, "drain": there}


def _at_work(unit: str) -> bool:
    state = systemctl.show(unit, ["ActiveState"])["ActiveState"]
    return state in ("active", "activating", "deactivating")


def logs(request: dict[str, Any]) -> dict[str, Any]:
    """`service logs` {engine, of: one of UNITS, lines} -> {unit, lines: [text]}, the oldest first,
    each with its time."""
    name = engine.name_of(request)
    of = fields.text(request, "of", "engine")
    if of not in UNITS:
        raise HostError(
            f"there is no log of {of!r}", f"there are those of {', '.join(UNITS)}.", "Name one."
        )
    unit = UNITS[of].format(name=name)
    count = min(fields.whole(request, "lines", 100), MOST_LINES)
    command = ["journalctl", "--no-pager", "--quiet", "--output=short-iso", "--reverse"]
    try:
        done = subprocess.run(
            [*command, f"--lines={count}", f"--unit={unit}"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=systemctl.CALL_TIMEOUT_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError(
            f"the journal of {unit} could not be read", f"{error}.", "Look at it on the host."
        ) from error
    return {"unit": unit, "lines": done.stdout.splitlines()[::-1]}


def kept_releases(request: dict[str, Any]) -> dict[str, Any]:
    """`service releases` {engine} -> {current, previous, releases: {id: {vllm, model, served_model_
    name, config, staged}}}: config is the text of its config.yaml, staged the Unix time at which
    the release came to this host."""
    name = engine.name_of(request)
    found = {}
    for directory in sorted((engine.home(name) / "releases").glob("[!.]*")):
        document = durable.read_object(directory / "release.json")
        if document is None:
            continue
        try:
            config = (directory / "config.yaml").read_text(encoding="utf-8")
        except OSError:
            config = ""
        kept = ("vllm", "model", "model_digest", "runtime", "served_model_name")
        staged = (directory / "release.json").stat().st_mtime  # written once, at its staging
        found[directory.name] = {key: document.get(key) for key in kept} | {
            "config": config,
            "staged": staged,
        }
    return {
        "current": engine.linked(name, "current"),
        "previous": engine.linked(name, "previous"),
        "releases": found,
    }
