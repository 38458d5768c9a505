"""Files that another revision of the same model has here already: copied, not downloaded.

A new revision often differs in a tokenizer and a README, and a lock gives a model that is here
another directory. What is copied is verified like what is downloaded. No hard links: they change
the inode of a published file, which then counts as touched.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from . import durable, model_record
from .errors import HostError

if TYPE_CHECKING:
    from pathlib import Path

    from .listing import FileEntry
    from .staging import Places
    from .status import Progress

CHUNK_BYTES = 64 << 20
# Less than this the hub's client brings as fast.
LEAST_BYTES = 1 << 20


def borrow(place: Places, missing: list[FileEntry], progress: Progress) -> list[str]:
    """Copy what other revisions have into staging/model, and say which files that were.

    The copy gets its name when it is whole, so a kill leaves nothing that looks like a file of the
    model. Where the file system can share blocks (XFS, btrfs), it costs neither time nor room.
    """
    there = _others(place, progress)
    wanted = [
        (entry, there[entry.sha256, entry.size_bytes])
        for entry in missing
        if entry.size_bytes >= LEAST_BYTES and (entry.sha256, entry.size_bytes) in there
        if not os.path.lexists(place.model / entry.path)
    ]
    if not wanted:
        return []
    total = sum(entry.size_bytes for entry, _ in wanted)
    message = f"{len(wanted)} files of another revision, {wanted[0][1].parent} first"
    progress.phase("copy", total=total, unit="bytes", message=message)
    done = 0
    scratch = place.staging / "copy"
    for entry, source in wanted:
        _copy(source, scratch, progress, done)
        done += entry.size_bytes
        goal = place.model / entry.path
        durable.make_directories(goal.parent)
        scratch.replace(goal)
    return [entry.path for entry, _ in wanted]


def _others(place: Places, progress: Progress) -> dict[tuple[str, int], Path]:
    """(SHA-256, size) -> a file of another published revision that nobody has touched since."""
    found: dict[tuple[str, int], Path] = {}
    for path in sorted(place.final.parent.glob("*.json")):
        directory = path.with_name(path.name[: -len(".json")])
        if directory == place.final or not directory.is_dir():
            continue
        try:
            record = model_record.read_files(directory)
        except HostError as error:
            progress.log(f"nothing is copied from {directory}: {error}")
            continue
        if record is None:
            continue
        touched = {entry.path for entry in model_record.touched_entries(directory, record)}
        for entry in model_record.recorded_entries(record):
            if entry.path not in touched:
                found.setdefault((entry.sha256, entry.size_bytes), directory / entry.path)
    return found


def _copy(source: Path, goal: Path, progress: Progress, done_before: int) -> None:
    with source.open("rb", buffering=0) as reader, goal.open("wb", buffering=0) as writer:
        done = 0
        try:
            while count := os.copy_file_range(reader.fileno(), writer.fileno(), CHUNK_BYTES):
                done += count
                progress.advance(done_before + done)
        except OSError as error:
            if done:
                raise HostError(
                    f"{source} could not be copied",
                    f"{error.strerror}.",
                    "Look at the disk ('df', 'dmesg'), then start again: whole files are kept.",
                ) from error
            # A file system or kernel that has no such call.
            shutil.copyfileobj(reader, writer, CHUNK_BYTES)
