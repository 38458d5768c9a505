"""Files that are either whole or not there, also after a power loss."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable: a rename is not until its directory is synced."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_durably(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace `path` with `content` in one step; missing directories above it are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(handle, mode)
            stream.write(content)
            stream.flush()
            os.fsync(handle)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_tree(directory: Path) -> None:
    """Make every file and directory below `directory` durable, before it is renamed into place."""
    for path in [directory, *directory.rglob("*")]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
