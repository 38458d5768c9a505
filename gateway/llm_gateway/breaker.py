"""A circuit breaker: a backend that fails is left alone for a while, then tried with one request.

closed     all requests pass; `failures` failures in a row open it
open       nothing passes until a time that doubles with each failed trial, up to a limit
half-open  one trial passes (the health check's, or a request when no other backend is there);
           its success closes the breaker, its failure opens it again
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

State = Literal["closed", "open", "half_open"]
STATES: tuple[State, ...] = ("closed", "open", "half_open")


class Breaker:
    """Pure but for its clock and its jitter. Times in monotonic seconds."""

    def __init__(
        self,
        failures: int,
        open_seconds: float,
        max_open_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),  # noqa: S311
    ) -> None:
        self._limit = failures
        self._first_seconds = open_seconds
        self._max_seconds = max_open_seconds
        self._clock = clock
        self._jitter = jitter
        self._failures = 0
        self._trials_failed = 0
        self._until: float | None = None
        self._trial = False

    def state(self) -> State:
        if self._until is None:
            return "closed"
        return "half_open" if self._clock() >= self._until else "open"

    def wait_seconds(self) -> float:
        """How long until a trial may pass; 0.0 when it may now."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    def set_limits(self, failures: int, open_seconds: float, max_open_seconds: float) -> None:
        """Other settings, from the next failure on."""
        self._limit = failures
        self._first_seconds = open_seconds
        self._max_seconds = max_open_seconds

    def trial_is_free(self) -> bool:
        return self.state() == "half_open" and not self._trial

    def begin_trial(self) -> bool:
        """Take the one trial of a half-open breaker; False when there is none to take."""
        if not self.trial_is_free():
            return False
        self._trial = True
        return True

    def end_trial(self) -> None:
        """The trial ended without telling anything (its client left)."""
        self._trial = False

    def succeeded(self) -> None:
        self._failures = 0
        self._trials_failed = 0
        self._until = None
        self._trial = False

    def failed(self) -> None:
        """One more failure. While it is open, failures of requests begun before change nothing."""
        state = self.state()
        if state == "closed":
            self._failures += 1
            if self._failures < self._limit:
                return
        elif state == "half_open":
            self._trials_failed += 1
        else:
            return
        seconds = min(self._max_seconds, self._first_seconds * 2.0**self._trials_failed)
        # Jitter, so that several gateways do not try a returning engine in the same moment.
        self._until = self._clock() + seconds * self._jitter()
        self._failures = 0
        self._trial = False
