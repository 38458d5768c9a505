"""Pure: from what systemd, the status file and the result file say, the state of a job."""

from __future__ import annotations

from typing import Any

from . import systemctl
from .errors import HostError

# systemd.exec(5), "Process Exit Codes": what systemd itself reports when it cannot start a command.
START_FAILURES = {
    "200": ("CHDIR", "the working directory is missing."),
    "203": ("EXEC", "the program or its interpreter is missing or not executable."),
    "216": ("GROUP", "the unit's group does not exist."),
    "217": ("USER", "the unit's user does not exist."),
    "226": ("NAMESPACE", "a path in ReadWritePaths= does not exist, or namespaces are forbidden."),
    "228": ("SECCOMP", "the system call filter could not be applied."),
    "233": ("RUNTIME_DIRECTORY", "the runtime directory could not be made."),
    "238": ("STATE_DIRECTORY", "the state directory could not be made."),
    "239": ("CACHE_DIRECTORY", "the cache directory could not be made."),
    "243": ("CREDENTIALS", "a credential's file is missing or unreadable."),
}
# strerror(E2BIG), which systemd writes beside 203/EXEC.
TOO_LARGE = "Argument list too long"
ENVIRONMENT_TOO_LARGE = (
    "the environment is too large (E2BIG, 'Argument list too long'): Linux takes at most 128 KiB "
    "in one variable, and in all, with the arguments, a quarter of the stack's limit, mostly 2 MiB "
    "(execve(2))."
)
SHORTEN_ENVIRONMENT = "Shorten engine.env; a long list belongs into a file that a variable names."
SIGNALS = {"6": "SIGABRT", "9": "SIGKILL", "11": "SIGSEGV", "15": "SIGTERM", "31": "SIGSYS"}


def describe(
    unit: str,
    stored: dict[str, Any],
    seen: dict[str, Any],
    told: dict[str, Any] | None,
    result: dict[str, Any] | None,
    current_boot_id: str,
) -> dict[str, Any]:
    """{state, progress, log_tail} and, by state, result or error and seconds.

    stored: the job's spec.json. seen: jobs.describe_unit. told, result: status.json and
    result.json, from whichever run they are.
    """
    told = _of_this_run(told, stored, seen)
    result = _of_this_run(result, stored, seen)
    progress = told["progress"] if told else None
    log_tail = list(told["log_tail"]) if told else []
    if seen["busy"]:
        waiting = {"phase": "queued", "done": 0, "total": None, "unit": "", "message": ""}
        waiting.update({"rate": None, "eta_seconds": None})
        return {"state": "running", "progress": progress or waiting, "log_tail": log_tail}
    if result is not None:
        answer: dict[str, Any] = {"state": result["state"], "progress": progress}
        answer["log_tail"] = log_tail or result.get("log_tail", [])
        answer.update({key: result[key] for key in ("result", "error", "seconds") if key in result})
        return answer
    if seen["invocation_id"]:
        log_tail = systemctl.journal_tail(seen["invocation_id"]) or log_tail
    error = _killed(unit, stored, seen, told, current_boot_id, log_tail)
    return {
        "state": "failed",
        "progress": progress,
        "log_tail": log_tail,
        "error": error.as_dict(),
        "killed": True,
    }


def _of_this_run(
    document: dict[str, Any] | None, stored: dict[str, Any], seen: dict[str, Any]
) -> dict[str, Any] | None:
    """The document if it is of the run that was asked for and that systemd last ran.

    systemd forgets a unit that ended well, and all of them at a reboot: then only the run tells.
    """
    if document is None or document.get("run") != stored["run"]:
        return None
    invocation = seen["invocation_id"]
    return document if not invocation or document.get("invocation_id") == invocation else None


def _killed(
    unit: str,
    stored: dict[str, Any],
    seen: dict[str, Any],
    told: dict[str, Any] | None,
    current_boot_id: str,
    log_tail: list[str],
) -> HostError:
    phase = told["progress"]["phase"] if told else None
    during = f" during '{phase}'" if phase else ""
    again = "Start it again: it resumes from what is on disk."
    look = f"See 'journalctl -u {unit}' on the host. "
    ended = f"{unit} ended without a result{during}"
    result, status = seen["result"], seen["exit_status"]
    if not seen["invocation_id"]:
        if stored.get("boot_id") != current_boot_id:
            return HostError(
                ended, "the host lost power or was rebooted while it ran.", again, log_tail
            )
        return HostError(
            f"{unit} did not run",
            "it was asked for, but systemd knows of no run: the request was cut short before "
            "systemd got it, or the unit was cancelled in the queue.",
            "Start it again.",
            log_tail,
        )
    if result == "oom-kill":
        return HostError(
            ended,
            "the kernel killed it because memory ran out (oom-kill).",
            "Free memory on the host or raise the unit's MemoryMax=, then start it again.",
            log_tail,
        )
    if result in ("signal", "core-dump"):
        name = SIGNALS.get(status, f"signal {status}")
        return HostError(ended, f"it was killed by {name} ({result}).", look + again, log_tail)
    if result == "timeout":
        return HostError(
            ended, "systemd killed it: it did not stop in TimeoutStopSec=.", again, log_tail
        )
    if result == "exit-code" and status in START_FAILURES:
        name, why = START_FAILURES[status]
        return HostError(
            f"{unit} could not be started",
            f"systemd gave up with {status}/{name}: {why}",
            "Run the deploy, which sets up users, directories and units. " + look,
            log_tail,
        )
    return HostError(
        ended, f"systemd says {result or 'nothing'}, exit code {status}.", look + again, log_tail
    )
