"""Files of an inventory that are whole or not there, and one writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from typing import TYPE_CHECKING

from pyinfra_deploy.keys.errors import KeysError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_TIMEOUT_SECONDS = 30.0


def write_file(path: Path, content: bytes, *, mode: int) -> None:
    """Replace a file: fsync of the content, rename, fsync of the directory.

    The mode is set before the first byte is written: a secret is at no moment readable by others.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        _write(temporary, content, mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def create_file(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file that must not exist yet (FileExistsError), also not as a link."""
    try:
        _write(path, content, mode)
    except FileExistsError:
        raise
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def _write(path: Path, content: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.fchmod(descriptor, mode)
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(directory: Path, timeout_seconds: float = LOCK_TIMEOUT_SECONDS) -> Iterator[None]:
    """Be the only writer of an inventory's keys on this machine; waits for another one to finish.

    The lock (flock(2)) is on the directory itself, so nothing is left behind and a killed process
    holds none. It is not re-entrant. Raises KeysError after timeout_seconds.
    """
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + timeout_seconds
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise KeysError(
                    f"{directory} is being changed by somebody else",
                    f"another run on this machine has held its lock for {timeout_seconds:.0f} s.",
                    f"Wait for it to end (`fuser -v {directory}` names it), then run this again.",
                )
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
