"""One at a time on a path: for jobs of different ids that would write into the same directory."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


POLL_SECONDS = 0.1


class Busy(HostError):
    """Another process has the lock."""


@contextmanager
def held(
    lock: Path,
    busy: str,
    fix: str,
    *,
    patience_seconds: float = 0.0,
    on_wait: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Hold a lock file as long as this process lives, or the block ends. Busy when another
    process has it for longer than patience_seconds: busy says what that one does, fix what to do
    about it. on_wait: called once, when it has to be waited for."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _taken(descriptor):
            if patience_seconds and on_wait is not None:
                on_wait()
            deadline = time.monotonic() + patience_seconds
            while not _taken(descriptor):
                if time.monotonic() >= deadline:
                    raise Busy(busy, f"another process holds {lock}.", fix)
                time.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(lock: Path) -> bool:
    """Whether another process has it. Who takes it in this moment has to have some patience."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _taken(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)
