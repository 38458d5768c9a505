"""A lock and the documents beside it, on the disk of the control machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyinfra_deploy.model.refused import Refused
from pyinfra_deploy.planning.model_lock import ModelLock, UnusableLock, lock_text, read_lock

if TYPE_CHECKING:
    from pyinfra_deploy.model.making import Made


def documents_directory(lock: Path) -> Path:
    """Beside LOCK.json, without its .json."""
    return lock.with_name(lock.name.removesuffix(".json"))


def present_lock(path: Path) -> ModelLock | None:
    """The lock that is there; None where there is none. Raises Refused for an unusable one."""
    try:
        return read_lock(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, UnusableLock) as error:
        raise Refused(
            f"{path} cannot be read",
            f"{error}.",
            "bring it back from git, or remove it: it is then made anew, with nothing to compare.",
        ) from error


def is_written(made: Made, path: Path) -> bool:
    """Whether lock and documents are on the disk as made."""
    directory = documents_directory(path)
    there = {
        file.relative_to(directory).as_posix(): file.read_bytes()
        for file in directory.rglob("*")
        if file.is_file()
    }
    return (
        path.is_file()
        and path.read_text(encoding="utf-8") == lock_text(made.lock)
        and there == made.documents
    )


def write_file(path: Path, content: bytes) -> None:
    """One file beside a lock, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".lock-") as scratch:
        fresh = Path(scratch) / "file"
        _write(fresh, content)
        fresh.replace(path)
    _flush(path.parent)


def write(made: Made, path: Path) -> None:
    """Documents first: interrupted, they do not fit the old lock, which the plan says."""
    directory = documents_directory(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".lock-") as scratch:
        fresh, old = Path(scratch) / "documents", Path(scratch) / "old"
        fresh.mkdir()
        for name, content in made.documents.items():
            _write(fresh / name, content)
        text = Path(scratch) / "lock"
        _write(text, lock_text(made.lock).encode())
        if directory.is_symlink():
            raise Refused(
                f"{directory} is a link", "the documents would replace it.", "remove the link."
            )
        if directory.exists():
            directory.rename(old)
        fresh.rename(directory)
        text.replace(path)
        shutil.rmtree(old, ignore_errors=True)
    _flush(path.parent)


def _flush(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
