"""Writes that survive a power cut: fsync the file, rename it, fsync the directory.

Without the first fsync a journalling file system may keep the rename and lose the content; without
the second the rename itself may be lost (fsync(2), "Calling fsync() does not necessarily ensure
that the entry in the directory containing the file has also reached disk").
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class StorageError(HostError, OSError):
    """A write that the file system refused, in words; also an OSError, as its cause was."""


def storage_error(error: OSError, path: Path, needed_bytes: int | None = None) -> StorageError:
    """What stands in the way of writing at path, and what to do about it."""
    what = f"{path} could not be written"
    why, fix = f"{error.strerror or error}.", "Mend that on the host, then run again."
    if error.errno in NO_ROOM:
        place = path
        while not place.exists():
            place = place.parent
        space = os.statvfs(place)
        free = space.f_bavail * space.f_frsize
        need = f"{needed_bytes} bytes are needed, " if needed_bytes is not None else ""
        why = f"{why} {need}{free} bytes and {space.f_favail} inodes are free at {place}."
        fix = (
            f"Free space there ('df -h {place}' and 'df -i {place}' show it; a quota counts too), "
            "then run again. What was begun was taken back, and nothing was switched."
        )
    elif error.errno == errno.EROFS:
        fix = "See 'dmesg': a file system goes read-only after an error. Mend it, then run again."
    elif error.errno == errno.EISDIR:
        why, fix = (
            "it is a directory, and a file belongs there.",
            (f"Look at what is in it, move it away ('mv {path} {path}.old'), then run again."),
        )
    elif error.errno in (errno.ENOTDIR, errno.EEXIST):
        fix = f"A file is where a directory belongs: look at it with 'ls -ld {path}', move it away."
    broken = StorageError(what, why, fix)
    broken.errno, broken.strerror = error.errno, error.strerror
    return broken


@contextmanager
def writing(path: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """The one place where a refusal of the file system becomes words: StorageError."""
    try:
        yield
    except StorageError:
        raise
    except FileNotFoundError:
        raise  # a directory that is missing is a matter of the caller
    except OSError as error:
        raise storage_error(error, path, needed_bytes) from error


def fsync_directory(path: Path) -> None:
    """Make the names in one directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make one file's content and metadata durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path, mode: int = 0o755) -> None:
    """mkdir -p whose new names are durable. Existing directories keep their mode."""
    missing = []
    current = path
    while not current.exists():
        missing.append(current)
        current = current.parent
    for directory in reversed(missing):
        with writing(directory):
            try:
                directory.mkdir()
            except FileExistsError:
                continue
            directory.chmod(mode)
            fsync_directory(directory.parent)


def write_file(
    path: Path,
    content: bytes | str,
    *,
    mode: int = 0o644,
    uid: int = -1,
    gid: int = -1,
) -> None:
    """Replace a file durably; a reader sees the old content or the new, never a part.

    Owner and mode are set before the first byte is written, so a secret is at no moment readable by
    more people than in the end. uid, gid: -1 leaves them as created.
    """
    data = content.encode() if isinstance(content, str) else content
    with writing(path, len(data)):
        _write(path, data, mode, uid, gid)


def _write(path: Path, data: bytes, mode: int, uid: int, gid: int) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            if uid != -1 or gid != -1:
                os.fchown(descriptor, uid, gid)
            os.fchmod(descriptor, mode)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def write_json(
    path: Path, document: object, *, mode: int = 0o644, uid: int = -1, gid: int = -1
) -> None:
    """write_file of a JSON document, readable by people: indented, keys in the order given."""
    write_file(path, json.dumps(document, indent=1) + "\n", mode=mode, uid=uid, gid=gid)


def read_json(path: Path) -> Any:
    """A JSON document, or None when the file does not exist. HostError when it is not JSON."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:
        raise HostError(
            f"cannot read {path}",
            "it is a directory, and a file belongs there.",
            f"Look at what is in it, move it away ('mv {path} {path}.old'), then run again.",
        ) from error
    except UnicodeDecodeError as error:
        raise _not_json(path, error) from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_json(path, error) from error


def _not_json(path: Path, error: Exception) -> HostError:
    return HostError(
        f"cannot read {path}",
        f"it is not valid JSON ({error}); this program writes it whole or not at all.",
        "Somebody else changed it: look at it, then remove it and run again.",
    )


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None for whatever else there is: nothing, a cut file, a list."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def remove_file(path: Path) -> None:
    """Remove a file durably; an absent one is fine."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    fsync_directory(path.parent)


def replace_symlink(link: Path, target: str | Path) -> None:
    """Point a symbolic link at a target, atomically and durably."""
    temporary = link.with_name(f".{link.name}.{secrets.token_hex(6)}.tmp")
    with writing(link):
        temporary.symlink_to(target)
        try:
            temporary.replace(link)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        fsync_directory(link.parent)


def fsync_tree(directory: Path) -> None:
    """fsync every regular file and every directory below, deepest first, then itself."""
    for root, _, names in os.walk(directory, topdown=False):
        for name in names:
            path = Path(root, name)
            if path.is_file() and not path.is_symlink():
                fsync_file(path)
        fsync_directory(Path(root))


def publish_directory(source: Path, destination: Path, *, synced: bool = False) -> None:
    """Move a finished directory to its final name so that it is there whole or not at all.

    Both must be on one file system. FileExistsError when the destination exists: rename(2) would
    silently replace an empty directory. synced: the caller has already fsynced the tree.
    """
    if os.path.lexists(destination):
        raise FileExistsError(f"{destination} exists")
    if not synced:
        fsync_tree(source)
    source.rename(destination)
    fsync_directory(destination.parent)
    if source.parent != destination.parent:
        fsync_directory(source.parent)


def remove_tree(directory: Path) -> None:
    """Remove a directory and all below, also where directories were made read-only."""
    if not os.path.lexists(directory):
        return
    if directory.is_symlink() or not directory.is_dir():
        remove_file(directory)
        return
    for root, _, _ in os.walk(directory):
        mode = Path(root).stat().st_mode
        if mode & 0o700 != 0o700:
            Path(root).chmod(mode | 0o700)
    shutil.rmtree(directory)
    fsync_directory(directory.parent)
