"""Proof before live: the release is tried in the engine's own sandbox before anything is switched.

llm-proof@ENGINE.service runs proof_script.py by the release's own Python, as the engine's user,
with the engine's devices and environment. What it found is kept beside the release, in
engines/ENGINE/proofs/RELEASE.json, with all that it depends on: the release, its binding,
the GPUs and the driver. As long as these are the same it is not repeated.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import durable, engine, events, fields, job_state, layout, proof_script, systemctl
from .errors import HostError

if TYPE_CHECKING:
    from pathlib import Path

    from .status import Progress

# Raised when what is checked changes, so that releases proven by less are proven again.
VERSION = 1
UNIT_PROPERTIES = [
    "ActiveState",
    "Job",
    "Result",
    "InvocationID",
    "ExecMainCode",
    "ExecMainStatus",
]
LOG_LINES = 30
SIGNAL_HINTS = {
    "4": "The CPU does not know an instruction of this build: it was made for a newer one.",
    "9": "Something killed it; when memory is short the kernel does (journalctl -k | grep -i oom).",
    "11": "Libraries that do not belong together do this: is the lock made in one resolution?",
    "31": "The sandbox forbids a system call that this version makes: report it.",
}


@dataclass(frozen=True)
class Wanted:
    """What is to be proven. gpus: the planned GPUs' UUIDs in the order of ranks."""

    device: str
    gpus: tuple[str, ...]
    trust_remote_code: bool
    timeout_seconds: float


def read_wanted(spec: dict[str, Any]) -> Wanted | None:
    """The spec's proof; None when none is wanted (engine.proof: off)."""
    asked = spec.get("proof")
    if not isinstance(asked, dict):
        return None
    return Wanted(
        device=fields.text(asked, "device"),
        gpus=tuple(fields.texts(asked, "gpus")),
        trust_remote_code=asked.get("trust_remote_code") is True,
        timeout_seconds=fields.seconds(asked, "timeout_seconds"),
    )


def record_path(name: str, release: str) -> Path:
    return engine.home(name) / "proofs" / f"{release}.json"


def driver_version() -> str | None:
    """Of the loaded kernel module, from sysfs: no program that could hang."""
    path = layout.system_root() / "sys/module/nvidia/version"
    return path.read_text().strip() if path.exists() else None


def depends_on(name: str, release: str, wanted: Wanted) -> dict[str, Any]:
    """All that a verdict depends on, beside the hardware itself."""
    return {
        "version": VERSION,
        "release": release,
        "binding": engine.binding_digest(name, release),
        "device": wanted.device,
        "gpus": list(wanted.gpus),
        "driver": driver_version() if wanted.device == "cuda" else None,
    }


def proven(name: str, release: str, wanted: Wanted) -> bool:
    """Whether this very release was proven with this binding, these GPUs and this driver."""
    record = durable.read_json(record_path(name, release))
    return (
        isinstance(record, dict)
        and record.get("state") == "passed"
        and record.get("depends_on") == depends_on(name, release, wanted)
    )


def prove(
    name: str,
    release: str,
    wanted: Wanted,
    progress: Progress,
    *,
    beside: bool,
    poll_seconds: float = 1.0,
) -> bool:
    """Prove a release and keep the verdict. HostError when it cannot run here. False: it could not
    be found out beside the engine that runs (`beside`), for want of GPU memory."""
    depends = depends_on(name, release, wanted)
    progress.phase("proving", unit="s", message=f"release {release} in the engine's sandbox")
    request = _request(name, release, wanted, beside=beside)
    began = time.monotonic()
    verdict = ask(name, release, request, wanted.timeout_seconds, progress, poll_seconds)
    seconds = round(time.monotonic() - began, 1)
    state = verdict["state"]
    if state == "unproven":
        error = verdict["error"]
        progress.log(f"not proven beside the running engine: {error['what']}: {error['why']}")
        return False
    record = {
        "state": state,
        "depends_on": depends,
        "beside_a_running_engine": beside,
        "seen": verdict.get("seen", {}),
        "seconds": verdict.get("seconds", {}),
        "error": verdict.get("error"),
        "when": events.utc_now(),
    }
    _keep(name, release, record)
    digest = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:16]
    events.record(
        f"proof {state}", engine=name, release=release, depends_on=digest, seconds=seconds
    )
    if state == "passed":
        progress.log(f"proven in {seconds:g} s: {_seen_words(record['seen'])}")
        return True
    error = verdict["error"]
    raise HostError(error["what"], error["why"], error["fix"], error["detail"])


def ask(
    name: str,
    release: str,
    request: dict[str, Any],
    timeout_seconds: float,
    progress: Progress,
    poll_seconds: float,
) -> dict[str, Any]:
    """The verdict {state, step, seen, error, ...} of the unit on a request about a release."""
    durable.replace_symlink(engine.home(name) / "candidate", f"releases/{release}")
    durable.write_json(proof_script.request_path(name), request)
    unit = f"llm-proof@{name}.service"
    try:
        return _run_unit(unit, name, request, timeout_seconds, progress, poll_seconds)
    finally:
        durable.remove_file(engine.home(name) / "candidate")
        durable.remove_file(proof_script.request_path(name))


def _seen_words(seen: dict[str, Any]) -> str:
    parts = [f"{key} {seen[key]}" for key in ("torch", "vllm", "driver_cuda") if key in seen]
    if seen.get("gpus"):
        parts.append(f"{len(seen['gpus'])} GPU(s) by UUID")
    parts += [str(name) for name in seen.get("architectures", [])]
    if seen.get("fallback"):
        parts.append(str(seen["fallback"]))
    return ", ".join(parts)


def base_request(name: str, release: str) -> dict[str, Any]:
    """What every request says of its release."""
    directory = engine.release_directory(name, release)
    document = durable.read_json(directory / "release.json") or {}
    return {
        "id": uuid.uuid4().hex,
        "release": release,
        "runtime": str((directory / "runtime").readlink()),
        "model": str((directory / "model").readlink()),
        "vllm": document.get("vllm"),
    }


def _request(name: str, release: str, wanted: Wanted, *, beside: bool) -> dict[str, Any]:
    return {
        **base_request(name, release),
        "device": wanted.device,
        "gpus": list(wanted.gpus),
        "trust_remote_code": wanted.trust_remote_code,
        "beside": beside,
    }


def _keep(name: str, release: str, record: dict[str, Any]) -> None:
    """Write the record; those of releases that were pruned go."""
    path = record_path(name, release)
    durable.make_directories(path.parent)
    for other in path.parent.glob("*.json"):
        if not engine.release_directory(name, other.stem).is_dir():
            durable.remove_file(other)
    durable.write_json(path, record)


# --- the unit


def _run_unit(
    unit: str,
    name: str,
    request: dict[str, Any],
    timeout_seconds: float,
    progress: Progress,
    poll_seconds: float,
) -> dict[str, Any]:
    """Start it, wait, and read its verdict; one of ours where it left none."""
    # Not start: one that is left from a go-live that was killed answers another request.
    systemctl.call(["restart", "--no-block", unit])
    began = time.monotonic()
    step = ""
    try:
        while True:
            shown = systemctl.show(unit, UNIT_PROPERTIES)
            verdict = _verdict(name, request)
            step = str(verdict.get("step") or step)
            elapsed = time.monotonic() - began
            busy = shown["ActiveState"] in ("activating", "active", "deactivating", "reloading")
            if not busy and shown["Job"] in ("", "0"):
                # Read once more: it may have been written after it was read and before the end.
                return _ended(unit, shown, _verdict(name, request), step)
            if elapsed > timeout_seconds:
                return _hung(unit, shown, step, timeout_seconds)
            progress.advance(round(elapsed, 1), step or "starting")
            time.sleep(poll_seconds)
    finally:
        # Nothing to do for one that has ended; else also when this go-live is told to stop.
        systemctl.call(["stop", unit], systemctl.CALL_TIMEOUT_SECONDS * 2)


def _verdict(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """What the proof has written for this request so far; empty for none."""
    try:
        document = json.loads(proof_script.verdict_path(name).read_text())
    except (OSError, ValueError):
        return {}
    ours = isinstance(document, dict) and document.get("id") == request["id"]
    return dict(document) if ours else {}


def _ended(unit: str, shown: dict[str, str], verdict: dict[str, Any], step: str) -> dict[str, Any]:
    if verdict.get("state") in ("passed", "failed", "unproven"):
        return verdict
    during = f"during '{step}'" if step else "before its first step"
    status, result = shown["ExecMainStatus"], shown["Result"]
    if status == "203" and any(job_state.TOO_LARGE in line for line in _journal(unit, shown)):
        why = f"systemd could not start it: {job_state.ENVIRONMENT_TOO_LARGE}"
        fix = job_state.SHORTEN_ENVIRONMENT
    elif result == "exit-code" and status in job_state.START_FAILURES:
        sign, why = job_state.START_FAILURES[status]
        why = f"systemd gave up with {status}/{sign}: {why}"
        fix = (
            "Is the runtime complete, and its interpreter there? The deploy mends users and units."
        )
    elif result == "oom-kill":
        why = f"the kernel killed it {during}, because memory ran out (oom-kill)."
        fix = "Free memory on the host: the engine itself will want far more."
    elif shown["ExecMainCode"] in ("2", "3"):
        number = job_state.SIGNALS.get(status, f"signal {status}")
        why = f"it was killed by {number} {during}."
        fix = SIGNAL_HINTS.get(status, f"See 'journalctl -u {unit}' on the host.")
    elif result == "timeout":
        why = f"systemd ended it {during}: it ran longer than TimeoutStartSec=."
        fix = f"See 'journalctl -u {unit}' on the host."
    else:
        why = f"it ended {during} with {result or 'no result'}, exit status {status}."
        fix = f"See 'journalctl -u {unit}' on the host."
    return _broken(unit, "the proof left no verdict", why, fix, shown)


def _hung(unit: str, shown: dict[str, str], step: str, seconds: float) -> dict[str, Any]:
    return _broken(
        unit,
        f"the proof hangs in '{step or 'starting'}'",
        f"it had not ended after {seconds:g} s, and was stopped.",
        "A driver that does not answer hangs its callers: try nvidia-smi and look at the kernel's "
        f"lines. A slow disk shows in iostat. See also 'journalctl -u {unit}'.",
        shown,
    )


def _journal(unit: str, shown: dict[str, str]) -> list[str]:
    """Of this start alone, with what systemd said of it: the unit was started for others before."""
    invocation = shown["InvocationID"]
    return engine.journal(unit, [invocation], 0, LOG_LINES) if invocation else []


def _broken(unit: str, what: str, why: str, fix: str, shown: dict[str, str]) -> dict[str, Any]:
    lines = _journal(unit, shown)
    return {"state": "failed", "error": HostError(what, why, fix, lines).as_dict()}
