"""Progress lines on stderr: what the lab does and how long it took."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def say(message: str) -> None:
    print(f"lab: {message}", file=sys.stderr, flush=True)


@contextmanager
def timed(message: str) -> Iterator[None]:
    """Say what starts, and when it has ended, after how many seconds."""
    say(f"{message} ...")
    started_seconds = time.monotonic()
    yield
    say(f"{message}: done in {time.monotonic() - started_seconds:.1f} s")
