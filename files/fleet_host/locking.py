"""One at a time on a path: for jobs of different ids that would write into the same directory."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Busy(HostError):
    """Another process has the lock."""


@contextmanager
def held(lock: Path, busy: str, fix: str) -> Iterator[None]:
    """Hold a lock file as long as this process lives, or the block ends. Busy when another
    process has it: busy says what that one does, fix what to do about it."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(busy, f"another process holds {lock}.", fix) from error
        yield
    finally:
        os.close(descriptor)
