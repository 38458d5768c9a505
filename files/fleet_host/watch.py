"""`watch run` ENGINE, the main process of llm-watch@ENGINE.service: finds an engine that hangs.

/health stays 200 while inference is stuck, so a completion of one token is asked for. Its absence
alone proves nothing: a full queue answers late. An engine hangs when three looks in a row got no
answer and between them no token was made and no request ended. It is killed then, all of its
processes at once, and systemd starts it again (Restart=on-failure).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import durable, engine, events, fields, layout, probe, stamp, start_time, systemctl
from .errors import HostError
from .watch_state import (
    GIVE_UP,
    KILL,
    MISSES,
    STARTS,
    Look,
    Seen,
    State,
    next_state,
    progress_of,
)

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

COMPLETIONS = "/v1/completions"
KILL_SECONDS = 60.0
# RestartPreventExitStatus= of the engine's unit. A signal that nobody handles and that kills; of a
# stop the unit would be inactive, as if somebody had wanted that.
GIVE_UP_SIGNAL = "SIGVTALRM"
GIVE_UP_SECONDS = 15.0
# What systemctl shows of an engine's age is monotonic, as CLOCK_MONOTONIC is (systemctl(1)).
UNIT_PROPERTIES = ["ActiveState", "InvocationID", "ActiveEnterTimestampMonotonic"]


@dataclass(frozen=True)
class Configuration:
    """/etc/llm/watch-ENGINE.json."""

    interval_seconds: float
    answer_seconds: float
    start_timeout_seconds: float | None


def configuration_path(name: str) -> Path:
    return layout.etc_root() / "llm" / f"watch-{name}.json"


def read_configuration(name: str) -> Configuration:
    document = durable.read_json(configuration_path(name))
    if not isinstance(document, dict):
        raise HostError(
            f"engine {name} is not watched",
            f"{configuration_path(name)} does not exist.",
            "Run the deploy, which writes it.",
        )
    limit = document.get("start_timeout_seconds")
    return Configuration(
        interval_seconds=fields.seconds(document, "interval_seconds"),
        answer_seconds=fields.seconds(document, "answer_seconds"),
        start_timeout_seconds=None if limit is None else float(limit),
    )


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Look at every interval until SIGTERM."""
    name = engine.name_of(request)
    began_with = program_identity()
    configuration = read_configuration(name)
    stop = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, end)
    stamp.write(f"llm-watch-{name}", configuration_path(name), "llm-watch@")
    state = State()
    while not stop.wait(configuration.interval_seconds):
        if program_identity() != began_with:
            become_the_new_one(name)
        state = look(name, configuration, state)
        _tell(name, state)
    return {"stopped": True}


def become_the_new_one(name: str) -> None:
    """A deploy has replaced the host program: go on as that one, in the same process, so that a
    second deploy finds the unit running."""
    program = str(layout.program())
    os.execv(program, [program, "watch", "run", name])  # noqa: S606 - our own program


def program_identity() -> tuple[int, int] | None:
    try:
        seen = layout.program().stat()
    except FileNotFoundError:
        return None
    return seen.st_ino, seen.st_mtime_ns


def _tell(name: str, state: State) -> None:
    """The state as a file, for who looks at the host."""
    path = layout.run_root() / f"llm-watch-{name}" / "state.json"
    temporary = path.with_name(".state.json")
    temporary.write_text(json.dumps(state.as_dict()) + "\n")
    temporary.replace(path)


def look(name: str, configuration: Configuration, before: State) -> State:
    """One look, and what follows from it: the new state."""
    unit = f"llm-engine@{name}.service"
    try:
        seen = observe(name, unit, configuration, before)
    except HostError as error:
        # systemd that does not answer says nothing of the engine.
        print(f"watch: not looked: {error}", flush=True)
        return before
    state = next_state(before, seen)
    if state.said != before.said and state.said:
        print(f"watch: {state.said}", flush=True)
    if state.action == KILL:
        _kill(name, unit, seen, state)
    elif state.action == GIVE_UP:
        _give_up(name, unit, state)
    return state


def observe(name: str, unit: str, configuration: Configuration, before: State) -> Seen:
    """What is to be known of the engine now; it is asked for a token only when that may count."""
    shown = systemctl.show(unit, UNIT_PROPERTIES)
    invocation = shown["InvocationID"]
    entered = shown["ActiveEnterTimestampMonotonic"]
    age = time.monotonic() - int(entered) / 1e6 if entered.isdigit() else 0.0
    if shown["ActiveState"] != "active":
        return Seen(invocation, Look.DOWN)
    if _others_at_work(name):
        return Seen(invocation, Look.OTHERS)
    socket = engine.socket_path(name)
    answered, said = _ask(name, socket, configuration.answer_seconds)
    if answered:
        return Seen(invocation, Look.ANSWERED)
    release = engine.linked(name, "current")
    limit = configuration.start_timeout_seconds
    if limit is None and release is not None:
        limit = start_time.allowed_seconds(name, release)
    fresh = before.invocation != invocation or not before.answered
    if fresh and limit is not None and age < limit:
        return Seen(invocation, Look.LOADING, said=said)
    # The drain may have begun while the answer was waited for.
    if _others_at_work(name):
        return Seen(invocation, Look.OTHERS)
    return Seen(invocation, Look.SILENT, progress_of(_metrics(socket)), said)


def _others_at_work(name: str) -> bool:
    """A go-live has its own watch, and what drains is to be left in peace.

    Only its unit says that a go-live is at work: what golive.json says stays as it is after a kill
    or a power cut, until somebody deploys. An engine that such a one left loading has the time of
    any start.
    """
    if engine.drain_flag(name).exists():
        return True
    shown = systemctl.show(f"llm-golive@{name}.service", ["ActiveState"])
    return shown["ActiveState"] in ("active", "activating", "deactivating")


def _ask(name: str, socket: Path, answer_seconds: float) -> tuple[bool, str]:
    """Whether it answered at all, and what was wrong. One token may well be an empty text (half of
    a character), and a refusal shows life too: what an answer is worth is go-live's question."""
    release = engine.linked(name, "current")
    path = engine.release_directory(name, release or "") / "release.json"
    document = durable.read_json(path) if release else None
    model = document.get("served_model_name") if isinstance(document, dict) else None
    body = {"model": model, "prompt": "1, 2, 3,", "max_tokens": 1, "temperature": 0}
    try:
        status, answer = probe.request(socket, "POST", COMPLETIONS, body, answer_seconds)
    except probe.NotReadyError as error:
        return False, str(error)
    if status < 500 and status not in (408, 429):
        return True, ""
    return (
        False,
        f"POST {COMPLETIONS} was answered {status}: {answer[:200].decode(errors='replace')}",
    )


def _metrics(socket: Path) -> str | None:
    """The text of /metrics; None when that is not answered either."""
    with contextlib.suppress(probe.NotReadyError):
        status, answer = probe.request(socket, "GET", "/metrics")
        if status == 200:
            return answer.decode("utf-8", "replace")
    return None


def _kill(name: str, unit: str, seen: Seen, state: State) -> None:
    events.record(
        "engine hung", who="watch", engine=name, release=engine.linked(name, "current"),
        misses=MISSES, last=seen.said[:200],
    )  # fmt: skip
    print(f"watch: {unit} hangs ({state.said}); all of its processes are killed", flush=True)
    # Not stop: what hangs would be waited for as long as a drain may take, and what stops cleanly
    # is not started again.
    systemctl.call(["kill", "--signal=SIGKILL", unit], KILL_SECONDS)


def _give_up(name: str, unit: str, state: State) -> None:
    events.record(
        "engine given up", who="watch", engine=name, release=engine.linked(name, "current"),
        starts=STARTS,
    )  # fmt: skip
    print(f"watch: {unit} is given up, until the next deploy: {state.said}", flush=True)
    systemctl.call(["kill", f"--signal={GIVE_UP_SIGNAL}", unit], KILL_SECONDS)
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while time.monotonic() < deadline:
        if systemctl.show(unit, ["ActiveState"])["ActiveState"] in ("failed", "inactive"):
            return
        time.sleep(0.2)
    systemctl.call(["stop", unit], KILL_SECONDS * 20)
