"""How long a pull outlasts a hub that sends nothing: until no new byte came for so many seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .status import Progress

# Between two runs of the client, which itself tries each file 3 to 5 times in half a minute.
FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 120.0


class Outage:
    """The time since the last new byte. patience_seconds: model.stall_timeout_seconds."""

    def __init__(self, patience_seconds: float) -> None:
        self.patience_seconds = patience_seconds
        self._since = time.monotonic()
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._tries = 0

    def bytes_came(self, seconds_ago: float) -> None:
        self._since = time.monotonic() - seconds_ago
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._tries = 0

    def wait(
        self, error: HostError, progress: Progress, woken: Callable[[], bool] | None = None
    ) -> None:
        """Pause before the client is run again, twice as long each time; the error, with how long
        nothing came, when that was too long. woken: asked once a second, ends the pause."""
        self._tries += 1
        quiet = time.monotonic() - self._since
        if quiet >= self.patience_seconds:
            raise HostError(
                error.what,
                f"{error.why} No new byte came for {quiet:.0f} s, in {self._tries} tries, and "
                f"model.stall_timeout_seconds is {self.patience_seconds:.0f}.",
                error.fix,
                error.detail,
            ) from error
        pause = min(self._pause_seconds, max(0.0, self.patience_seconds - quiet))
        progress.phase(
            "waiting",
            message=f"{error.why} No new byte for {quiet:.0f} s (given up after "
            f"{self.patience_seconds:.0f} s): the client is run again in {pause:.0f} s.",
        )
        end = time.monotonic() + pause
        while (left := end - time.monotonic()) > 0 and not (woken is not None and woken()):
            time.sleep(left if woken is None else min(1.0, left))
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
