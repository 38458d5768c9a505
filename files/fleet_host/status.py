"""What a running job says about itself: a small file in the unit's RuntimeDirectory.

It is written atomically and at most every half second. No fsync: /run is memory, and after a power
cut the absence of the file is the truth.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

MINIMUM_INTERVAL_SECONDS = 0.5
LOG_LINES_KEPT = 20
# The rate is taken over this window: long enough to be calm, short enough to show a slow-down.
RATE_WINDOW_SECONDS = 30.0
# A phase of bytes takes hours: the journal tells how far it is, once in so many seconds.
JOURNAL_INTERVAL_SECONDS = 60.0
# The phase of integrity.verify_files.
HASHING = "verify"


def size_words(count: float) -> str:
    for factor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.1f} {name}"
    return f"{count:.0f} B"


class Progress:
    """A job's progress: phase, done of total in a unit, one message, the last log lines.

    path: the status file, or None to keep it in memory only. identity: keys put into the file as
    they are (run, invocation_id), which tell a reader whose status this is.
    """

    def __init__(self, path: Path | None, identity: dict[str, Any] | None = None) -> None:
        self._path = path
        self._identity = dict(identity or {})
        self._written_at: float | None = None
        self._samples: deque[tuple[float, float]] = deque()
        self._log: deque[str] = deque(maxlen=LOG_LINES_KEPT)
        self._phase = "starting"
        self._done: float = 0
        self._total: float | None = None
        self._unit = ""
        self._message = ""
        self._told_at = time.monotonic()
        self._files: list[dict[str, Any]] = []
        self._hashed_bytes = 0

    def phase(
        self, name: str, *, total: float | None = None, unit: str = "", message: str = ""
    ) -> None:
        """Begin a phase; done counts from 0 again. Written at once and put into the journal."""
        self._phase, self._total, self._unit, self._message = name, total, unit, message
        self._done = 0
        self._samples.clear()
        self._files = []
        self._told_at = time.monotonic()
        self.log(f"{name}: {message}" if message else name)
        self._write()

    def advance(self, done: float, message: str | None = None) -> None:
        """How much of the phase is done, in its unit."""
        now = time.monotonic()
        self._done = done
        if message is not None:
            self._message = message
        self._samples.append((now, done))
        if self._unit == "bytes" and now - self._told_at >= JOURNAL_INTERVAL_SECONDS:
            self._told_at = now
            self.journal(self.in_words())
        while len(self._samples) > 2 and now - self._samples[0][0] > RATE_WINDOW_SECONDS:
            self._samples.popleft()
        if self._written_at is None or now - self._written_at >= MINIMUM_INTERVAL_SECONDS:
            self._write()

    def hashed_bytes(self) -> int:
        """Of the phase that hashes, or the last one that did."""
        if self._phase == HASHING:
            self._hashed_bytes = int(self._done)
        return self._hashed_bytes

    def say(self, message: str) -> None:
        """Another message for the same phase."""
        self._message = message

    def files(self, in_flight: list[dict[str, Any]]) -> None:
        """The files that are being worked at: {path, done, total} in bytes."""
        self._files = in_flight

    def log(self, line: str) -> None:
        """A line for the journal that also shows in the status."""
        self._log.append(line)
        self.journal(line)

    def journal(self, line: str) -> None:
        """A line for the journal alone: what comes again and again would fill the status."""
        print(line, file=sys.stderr, flush=True)

    def in_words(self) -> str:
        """Of a phase that counts bytes: how much of how much, how fast, how long it will take."""
        now = self.as_dict()
        words = f"{self._phase}: {size_words(self._done)}"
        if self._total:
            words += f" of {size_words(self._total)} ({100 * self._done / self._total:.0f}%)"
        if now["rate"] is not None:
            words += f", {size_words(now['rate'])}/s"
        if now["eta_seconds"] is not None:
            minutes = now["eta_seconds"] // 60
            words += f", about {minutes // 60} h {minutes % 60} min left"
        return words

    def tail(self) -> list[str]:
        return list(self._log)

    def rate_per_second(self) -> float | None:
        """Units per second over the last half minute; None before there is anything to tell."""
        if len(self._samples) < 2:
            return None
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return (after - before) / (end - start) if end > start else None

    def as_dict(self) -> dict[str, Any]:
        rate = self.rate_per_second()
        left = None if self._total is None else self._total - self._done
        return {
            "phase": self._phase,
            "done": self._done,
            "total": self._total,
            "unit": self._unit,
            "message": self._message,
            "rate": None if rate is None else round(rate, 3),
            "eta_seconds": round(left / rate) if rate and left is not None and left >= 0 else None,
            **({"files": self._files} if self._files else {}),
        }

    def _write(self) -> None:
        self._written_at = time.monotonic()
        if self._path is None:
            return
        document = {**self._identity, "progress": self.as_dict(), "log_tail": self.tail()}
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(document) + "\n")
        temporary.replace(self._path)
