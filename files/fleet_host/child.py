"""Running a long child process: its own process group, its last lines, its stalls."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from .errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TAIL_LINES = 40
KILL_GRACE_SECONDS = 10.0
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# tqdm, pip and uv draw bars such as " 45%|####    | 1.2G/2.6G [...]" and end them with \r.
BAR = re.compile(r"\d+%\|")
# The modelscope client begins with its name drawn in punctuation: no line of that has a word.
WORD = re.compile(r"[A-Za-z]{3}|\d")
LONGEST_LINE = 500


@dataclass(frozen=True)
class Ended:
    """How a child ended. stalled: it was killed because nothing moved for stall_seconds.
    quiet_seconds: how long nothing had moved at its end."""

    returncode: int
    tail: list[str]
    stalled: bool
    seconds: float
    quiet_seconds: float = 0.0


def run(
    argv: list[str],
    *,
    env: dict[str, str],
    cwd: Path,
    on_poll: Callable[[], object],
    stall_seconds: float,
    poll_seconds: float = 1.0,
    on_line: Callable[[str], None] | None = None,
    output_is_activity: bool = True,
) -> Ended:
    """Run a program to its end.

    on_poll is called about every poll_seconds and returns a value that changes as long as the work
    moves (bytes on disk, say); with output_is_activity a line of output counts as moving too. When
    nothing moved for stall_seconds the whole process group is killed. Any exception on the way,
    a SIGTERM to this program too, kills the group before it goes on.
    """
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise HostError(
            f"cannot run {argv[0]}",
            f"{error.strerror}.",
            "Deploy again: the environment that holds this program is rebuilt when it is broken.",
        ) from error
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    moved = [time.monotonic()]
    assert process.stdout is not None
    reader = threading.Thread(
        target=_read_lines,
        args=(process.stdout, tail, on_line, moved if output_is_activity else [0.0]),
        daemon=True,
    )
    reader.start()
    stalled = False
    try:
        seen = on_poll()
        while not _ended(process, poll_seconds):
            now_seen = on_poll()
            if now_seen != seen:
                seen, moved[0] = now_seen, time.monotonic()
            if time.monotonic() - moved[0] > stall_seconds:
                stalled = True
                break
    finally:
        kill_group(process)
        reader.join(timeout=5)
    if on_poll() != seen:
        moved[0] = time.monotonic()
    now = time.monotonic()
    return Ended(process.returncode, list(tail), stalled, now - started, now - moved[0])


def _ended(process: subprocess.Popen[bytes], timeout_seconds: float) -> bool:
    try:
        process.wait(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a child and what it started: SIGTERM, ten seconds, SIGKILL. A dead one is only reaped."""
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        if not _ended(process, KILL_GRACE_SECONDS):
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
    # The leader is gone; workers that it left behind still write into our directories.
    _signal_group(process.pid, signal.SIGKILL)


def _signal_group(leader: int, number: int) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return


def _read_lines(
    stream: IO[bytes],
    tail: deque[str],
    on_line: Callable[[str], None] | None,
    moved: list[float],
) -> None:
    rest = ""
    while True:
        chunk = os.read(stream.fileno(), 65536)
        if not chunk:
            break
        moved[0] = time.monotonic()
        *lines, rest = re.split(r"[\r\n]", rest + chunk.decode(errors="replace"))
        for line in lines:
            _take(line, tail, on_line)
    _take(rest, tail, on_line)
    stream.close()


def _take(line: str, tail: deque[str], on_line: Callable[[str], None] | None) -> None:
    clean = ANSI.sub("", line).strip()[:LONGEST_LINE]
    if not WORD.search(clean) or BAR.search(clean):
        return
    tail.append(clean)
    if on_line is not None:
        on_line(clean)


def exit_words(returncode: int) -> str:
    """ "exit code 1", or the signal's name."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


def says_no_space(lines: list[str]) -> bool:
    """Whether a program's output says that the disk is full (ENOSPC is errno 28)."""
    found = re.compile(r"No space left on device|Errno 28\b|os error 28\b|Disk quota exceeded")
    return any(found.search(line) for line in lines)
