"""Start an engine's unit and wait until it has really answered, or say why it will not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import engine, probe, root_cause, systemctl
from .errors import HostError

if TYPE_CHECKING:
    from .status import Progress

# systemd waits TimeoutStopSec for the old process first, which is above the drain time.
RESTART_TIMEOUT_SECONDS = 3600.0
# The first completion may compile kernels; later ones take milliseconds.
COMPLETION_TIMEOUT_SECONDS = 120.0
# CPU time below this share of one core is the idling of a process that gets nowhere: loading
# weights from a slow disk at 100 MB/s takes about 5% of a core in copying alone.
WORKING_SHARE = 0.02
# The tracebacks of eight workers, the engine core and the server are under a thousand lines.
LOG_LINES_READ = 4000
EXIT_HINTS = {
    "2": "vLLM exits with 2 for an argument that it does not know or a value that it refuses.",
    "203": "The program could not be executed: is the runtime complete, is its interpreter there?",
}


@dataclass(frozen=True)
class Patience:
    """How long to wait: never above start_timeout, nor above stall_timeout without progress."""

    start_timeout_seconds: float
    stall_timeout_seconds: float
    poll_seconds: float


class UnhealthyError(Exception):
    """The engine does not serve. cause: one sentence; lines: what its log says it died of."""

    def __init__(self, cause: str, lines: list[str]) -> None:
        super().__init__(cause)
        self.cause = cause
        self.lines = lines


class _Watch:
    """Whether a unit gets on: a new log line, or CPU time that grows like work."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._position = ""
        self._cpu_seconds: float | None = None
        self._moved_at = time.monotonic()

    def idle_seconds(self, shown: dict[str, str]) -> float:
        """Seconds since the unit last got on."""
        now = time.monotonic()
        position = engine.journal_position(self._unit)
        cpu_seconds = engine.cpu_seconds(shown)
        worked = (cpu_seconds or 0.0) - (self._cpu_seconds or 0.0)
        moved = position != self._position or worked > WORKING_SHARE * (now - self._moved_at)
        if moved:
            self._position, self._cpu_seconds, self._moved_at = position, cpu_seconds, now
        return now - self._moved_at


def restart(unit: str) -> float:
    """Restart the unit; the wall-clock second from which its new log counts. UnhealthyError."""
    since = time.time()
    try:
        # Clears a start limit that was hit, and the restart counter. It fails for a unit that
        # systemd has not loaded yet, which is then fresh anyway.
        systemctl.call(["reset-failed", unit])
    except HostError:
        since = time.time()
    try:
        systemctl.call(["restart", unit], RESTART_TIMEOUT_SECONDS)
    except HostError as error:
        shown = engine.unit_state(unit)
        cause = death(unit, shown, shown["InvocationID"]) or f"{error.what}: {error.why}"
        raise UnhealthyError(cause, log_of(unit, [shown["InvocationID"]], since)) from error
    return since


def log_of(unit: str, invocations: list[str], since_epoch_seconds: float) -> list[str]:
    """What runs of the unit said, as far as it explains how they ended."""
    lines = engine.journal(unit, invocations, since_epoch_seconds, LOG_LINES_READ)
    return root_cause.explained(lines)


def death(unit: str, shown: dict[str, str], invocation: str) -> str | None:
    """Why the unit's start has failed, in a sentence; None while it may still come up."""
    state, status = shown["ActiveState"], shown["ExecMainStatus"]
    restarts = shown["NRestarts"]
    if state in ("failed", "inactive"):
        killed = shown["ExecMainCode"] in ("2", "3")
        how = f"killed by signal {status}" if killed else f"exit status {status}"
        hint = "" if killed else EXIT_HINTS.get(status, "")
        return f"{unit} ended ({shown['Result']}, {how}). {hint}".strip()
    if shown["SubState"].startswith("auto-restart") or restarts not in ("", "0"):
        hint = EXIT_HINTS.get(status, "")
        text = f"{unit} died while starting ({shown['Result']}, status {status}), and systemd "
        return f"{text}keeps restarting it. {hint}".strip()
    if shown["InvocationID"] != invocation:
        return f"{unit} was restarted by something else while it was starting."
    return None


def wait_until_serving(
    name: str,
    unit: str,
    wanted: probe.Probe,
    patience: Patience,
    progress: Progress,
    since_epoch_seconds: float,
) -> str:
    """The text of the first real completion. UnhealthyError when it will not come.

    The deadline moves with the unit's progress (log lines, CPU time) up to start_timeout.
    """
    began = time.monotonic()
    watch = _Watch(unit)
    invocation: str | None = None
    last_answer = "it has not opened its socket yet"
    while True:
        shown = engine.unit_state(unit)
        invocation = invocation if invocation is not None else shown["InvocationID"]
        cause = death(unit, shown, invocation)
        elapsed = time.monotonic() - began
        idle = watch.idle_seconds(shown)
        if cause is None and elapsed > patience.start_timeout_seconds:
            cause = (
                f"{unit} did not answer within engine.start_timeout_seconds = "
                f"{patience.start_timeout_seconds:g}; last: {last_answer}."
            )
        if cause is None and idle > patience.stall_timeout_seconds:
            cause = (
                f"{unit} has shown no new log line and no CPU work for engine."
                f"stall_timeout_seconds = {patience.stall_timeout_seconds:g}; last: {last_answer}."
            )
        if cause is not None:
            # Of a crash loop, also the start that died: the newest one may have said nothing yet.
            runs = [invocation, shown["InvocationID"]]
            raise UnhealthyError(cause, log_of(unit, runs, since_epoch_seconds))
        if engine.socket_path(name).exists():
            left = patience.start_timeout_seconds - elapsed
            try:
                return probe.completion(
                    engine.socket_path(name),
                    wanted,
                    max(1.0, min(COMPLETION_TIMEOUT_SECONDS, left)),
                )
            except probe.RejectedError as error:
                lines = log_of(unit, [invocation], since_epoch_seconds)
                raise UnhealthyError(f"{error}.", lines) from error
            except probe.NotReadyError as error:
                last_answer = str(error)
        progress.advance(round(time.monotonic() - began, 1), last_answer)
        time.sleep(patience.poll_seconds)
