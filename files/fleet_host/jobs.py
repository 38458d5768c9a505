"""Long work as systemd units: llm-KIND@ID.service runs `fleet-host job run KIND ID`.

The unit is the job's lock: systemd runs it once at a time. Files of a job:
  {llm_root}/jobs/KIND/ID/spec.json     what to do, and the run that was asked for (durable)
  /run/llm-KIND/ID/status.json          how far it is (status.py)
  /var/lib/llm-KIND/ID/result.json      how it ended (durable)
A result is removed when a run begins and carries that run's identity, so an old run's result is
never taken for this run's, and a run without one was killed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib
import json
import os
import re
import signal
import time
import traceback
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import SCHEMA_VERSION, durable, events, layout, systemctl
from .errors import HostError, SpecError
from .job_request import differences
from .job_state import describe
from .status import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

# Kind -> the function that does the work: function(spec, progress) -> result.
RUNNERS: dict[str, str] = {
    "environment": "environment:run",
    "wheels": "wheels:run",
    "serve": "wheel_server:run",
    "share": "share_server:run",
    "pull": "pull:run",
    "verify": "verification:run",
    "golive": "golive:run",
    "driver": "driver:run",
}

# What llm-verify.timer starts.
SCHEDULED = ("verify", "scheduled")
IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
STOP_TIMEOUT_SECONDS = 120.0
UNIT_PROPERTIES = [
    "LoadState",
    "LoadError",
    "ActiveState",
    "Job",
    "InvocationID",
    "Result",
    "ExecMainStatus",
]


class Stopped(BaseException):
    """SIGTERM arrived. Not an Exception: nothing on the way may take it for a failed step."""


def unit_name(kind: str, identifier: str) -> str:
    """The unit of a job. systemd unescapes nothing here: "-" and "." are plain in %i."""
    return f"llm-{kind}@{identifier}.service"


def job_directory(kind: str, identifier: str) -> Path:
    return layout.llm_root() / "jobs" / kind / identifier


def status_path(kind: str, identifier: str) -> Path:
    return layout.run_root() / f"llm-{kind}" / identifier / "status.json"


def result_path(kind: str, identifier: str) -> Path:
    return layout.state_root() / f"llm-{kind}" / identifier / "result.json"


def spec_digest(spec: dict[str, Any]) -> str:
    """SHA-256 of the spec as canonical JSON."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


def named_job(request: dict[str, Any]) -> tuple[str, str]:
    """The request's kind and id, checked. SpecError."""
    kind, identifier = request.get("kind"), request.get("id")
    if not isinstance(kind, str) or kind not in RUNNERS:
        raise SpecError(
            f"there is no job kind {kind!r}",
            "a job's kind is one of " + ", ".join(RUNNERS) + ".",
            'Give "kind".',
        )
    if not isinstance(identifier, str) or not IDENTIFIER.fullmatch(identifier):
        raise SpecError(
            f"{identifier!r} cannot be a job's id",
            "an id becomes a unit's instance and a directory: up to 128 letters, digits, '.', '_' "
            "and '-', beginning with a letter or digit.",
            'Give another "id".',
        )
    return kind, identifier


def read_job(kind: str, identifier: str) -> dict[str, Any] | None:
    """The job's stored request {schema, run, boot_id, digest, spec}; None when there is none."""
    path = job_directory(kind, identifier) / "spec.json"
    stored = durable.read_json(path)
    if stored is None:
        return None
    if not isinstance(stored, dict) or not isinstance(stored.get("spec"), dict):
        raise HostError(
            f"{path} does not hold a job", "it lacks its spec.", "Remove it and deploy again."
        )
    if stored.get("schema", 0) > SCHEMA_VERSION:
        raise HostError(
            f"{path} was written by a newer program",
            f"it has schema {stored['schema']}, this program knows {SCHEMA_VERSION}.",
            "Deploy with the newer version, or remove the file if that version is gone for good.",
        )
    return stored


def stored_or_scheduled(kind: str, identifier: str) -> dict[str, Any] | None:
    """As read_job; the job that a timer starts has no request of anybody's."""
    stored = read_job(kind, identifier)
    if stored is None and (kind, identifier) == SCHEDULED:
        run_id = os.environ.get("INVOCATION_ID", "")
        return {"run": run_id, "who": "llm-verify.timer", "spec": {"scheduled": True}}
    return stored


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@contextmanager
def _start_lock(directory: Path) -> Iterator[None]:
    """Two `job start` at once: the second looks only after the first has asked systemd."""
    descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def start(request: dict[str, Any]) -> dict[str, Any]:
    """{kind, id, spec, who} -> {state: started|attached, unit, run}.

    who: for the event log; by default the lease's holder.

    A job that runs and does what this spec asks for is attached to (job_request.py); one that does
    something else is a refusal, since stopping it is the operator's decision.
    """
    kind, identifier = named_job(request)
    spec, who = request.get("spec"), request.get("who")
    if not isinstance(spec, dict):
        raise SpecError(f"no spec for {kind} {identifier}", "'spec' must be an object.", "Give it.")
    directory = job_directory(kind, identifier)
    jobs_root = layout.llm_root() / "jobs"
    if not jobs_root.is_dir():
        raise HostError(
            f"cannot start {kind} {identifier}",
            f"{jobs_root} does not exist: this host is not prepared.",
            "Run the deploy, which creates the directories first.",
        )
    # Group of jobs/ (llm-build): the unit's user must read a spec that others need not see, since
    # an index URL may carry a password.
    group = jobs_root.stat().st_gid
    for path in (directory.parent, directory):
        if not path.is_dir():
            durable.make_directories(path, mode=0o750)
            os.chown(path, -1, group)
    unit = unit_name(kind, identifier)
    with _start_lock(directory):
        if describe_unit(unit)["busy"]:
            stored = read_job(kind, identifier) or {"spec": {}}
            other = differences(kind, stored["spec"], spec)
            if other:
                raise _runs_otherwise(unit, stored["spec"], spec, other)
            return {"state": "attached", "unit": unit, "run": stored["run"]}
        run_id = uuid.uuid4().hex
        stored = {
            "schema": SCHEMA_VERSION,
            "run": run_id,
            "boot_id": boot_id(),
            "digest": spec_digest(spec),
            "who": who if isinstance(who, str) and who else events.holder(),
            "spec": spec,
        }
        durable.write_json(directory / "spec.json", stored, mode=0o640, gid=group)
        systemctl.call(["start", "--no-block", unit])
    return {"state": "started", "unit": unit, "run": run_id}


def _runs_otherwise(
    unit: str, running: dict[str, Any], asked: dict[str, Any], fields: list[str]
) -> HostError:
    if "release" in fields:
        what = f"a go-live to release {running.get('release')} is running"
        why = f"{unit} is active, and this run asks for release {asked.get('release')}."
    else:
        what = f"{unit.removesuffix('.service')} is running with another request"
        why = f"{unit} is active, and this run asks for other values of: {', '.join(fields)}."
    return HostError(
        what,
        why,
        f"Wait until it has ended ('journalctl -fu {unit}' on the host shows it), or stop it: "
        f"'sudo systemctl stop {unit}'. Then run the same command again: what it had done so far "
        "is kept, and what it left half done is ended.",
    )


def describe_unit(unit: str) -> dict[str, Any]:
    """What systemd says: {busy, active, invocation_id, result, exit_status}."""
    shown = systemctl.show(unit, UNIT_PROPERTIES)
    if shown["LoadState"] not in ("loaded", ""):
        raise HostError(
            f"systemd cannot load {unit}",
            f"{shown['LoadState']}: {shown['LoadError'] or 'the unit file is missing or wrong.'}",
            "Run the deploy, which installs the units; then 'systemctl daemon-reload'.",
        )
    # A start asked for with --no-block is only a queued job for a moment; property Job tells.
    queued = shown["Job"] not in ("", "0")
    active = shown["ActiveState"] in ("active", "activating", "deactivating", "reloading")
    return {
        "busy": queued or active,
        "active": active,
        "invocation_id": shown["InvocationID"],
        "result": shown["Result"],
        "exit_status": shown["ExecMainStatus"],
    }


def status(request: dict[str, Any]) -> dict[str, Any]:
    """{kind, id} -> {state: running|done|failed|absent, run, progress, result, error, log_tail}."""
    kind, identifier = named_job(request)
    stored = read_job(kind, identifier)
    if stored is None:
        return {"state": "absent", "kind": kind, "id": identifier, "log_tail": []}
    unit = unit_name(kind, identifier)
    # The unit is asked before the files are read: a run that ends in between is then reported as
    # running once more, never as killed for want of a result not yet written.
    seen = describe_unit(unit)
    result = durable.read_json(result_path(kind, identifier))
    told = durable.read_json(status_path(kind, identifier))
    answer = describe(unit, stored, seen, told, result, boot_id())
    return {"kind": kind, "id": identifier, "unit": unit, "run": stored["run"], **answer}


def stop(request: dict[str, Any]) -> dict[str, Any]:
    """{kind, id} -> the job's status after `systemctl stop`. What it had done so far is kept."""
    kind, identifier = named_job(request)
    systemctl.call(["stop", unit_name(kind, identifier)], STOP_TIMEOUT_SECONDS)
    return status(request)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """What the unit executes: do the work of the stored spec and leave a durable result."""
    kind, identifier = named_job(request)
    stored = stored_or_scheduled(kind, identifier)
    if stored is None:
        raise HostError(
            f"{kind} {identifier} has nothing to do",
            f"{job_directory(kind, identifier) / 'spec.json'} does not exist.",
            "Run the deploy, which says what is to be done and starts it, instead of systemctl.",
        )
    invocation_id = os.environ.get("INVOCATION_ID", "")
    if not invocation_id:
        raise HostError(
            f"{kind} {identifier} was not run",
            "'job run' is for systemd, whose unit makes sure that it runs once at a time.",
            "Run the deploy, which has systemd start it.",
        )
    signal.signal(signal.SIGTERM, _on_terminate)
    identity = {"run": stored["run"], "invocation_id": invocation_id}
    result_file = result_path(kind, identifier)
    durable.remove_file(result_file)
    progress = Progress(status_path(kind, identifier), identity)
    progress.phase("starting", message=f"{kind} {identifier}, run {stored['run']}")
    module, name = RUNNERS[kind].split(":")
    started = time.monotonic()
    outcome: dict[str, Any]
    try:
        work: Callable[..., dict[str, Any]] = getattr(
            importlib.import_module(f"fleet_host.{module}"), name
        )
        outcome = {"state": "done", "result": work(stored["spec"], progress)}
    except HostError as error:
        outcome = {"state": "failed", "error": error.as_dict()}
        if error.result is not None:
            outcome["result"] = error.result
    except Exception as error:
        outcome = {"state": "failed", "error": _broken(kind, identifier, error).as_dict()}
    except Stopped:
        outcome = {"state": "failed", "error": _stopped(kind, identifier).as_dict()}
    seconds = round(time.monotonic() - started, 3)
    document = {**identity, "schema": SCHEMA_VERSION, "seconds": seconds, **outcome}
    document["log_tail"] = progress.tail()
    durable.write_json(result_file, document)
    if outcome["state"] == "failed":
        failure = outcome["error"]
        raise HostError(failure["what"], failure["why"], failure["fix"], failure["detail"])
    return document


def _on_terminate(_signal: int, _frame: FrameType | None) -> None:
    # A second SIGTERM must not break the writing of the result.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


def _broken(kind: str, identifier: str, error: Exception) -> HostError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HostError(
            f"{kind} {identifier} could not write {error.filename or 'a file'}",
            "no space is left on the device, or a quota is used up.",
            "Free space (see 'df -h' and 'df -i'), then start it again: it resumes.",
        )
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return HostError(
            f"{kind} {identifier} may not touch {error.filename or 'a file'}",
            f"{error.strerror}.",
            "Run the deploy, which sets owners (llm-build) and modes; a file system that turned "
            "read-only after an error shows in 'dmesg'. Then start it again.",
            traceback.format_exc().splitlines(),
        )
    return HostError(
        f"{kind} {identifier} broke",
        f"{type(error).__name__}: {error}.",
        "Start it again; if it breaks in the same way, report the detail.",
        traceback.format_exc().splitlines(),
    )


def _stopped(kind: str, identifier: str) -> HostError:
    return HostError(
        f"{kind} {identifier} was stopped",
        f"somebody ran 'systemctl stop {unit_name(kind, identifier)}', or the host shuts down.",
        "Run the same command again: what it had done so far is kept.",
    )
