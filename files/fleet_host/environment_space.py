"""Room for an environment: checked before it is built, and what an interrupted build has left."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Protocol

from . import child, durable, layout
from .environment_spec import COMPLETE
from .errors import HostError
from .staging import free_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path

UNSYNCED = ".unsynced"
# Less than one file of a package may want.
FULL_BYTES = 8 << 20


class Sized(Protocol):
    """What a build is checked for room by: an environment, or Miniforge."""

    @property
    def path(self) -> Path: ...
    @property
    def bytes_needed(self) -> int: ...


def check_space(
    wanted: Sized, cache: Path, cache_bytes_needed: int = 0, present: float = 0.0
) -> None:
    """HostError with path, needed and free bytes when a file system has too little.

    present: the share that is on the disk already. What an earlier, interrupted run has unpacked
    into uv's cache is not needed again either.
    """
    durable.make_directories(cache, mode=0o755)
    beside = wanted.path.parent
    needed = int(wanted.bytes_needed * (1 - present))
    needed = max(0, needed - unused_bytes(uv_cache(beside)))
    places = {beside: needed, cache: cache_bytes_needed}
    if beside.stat().st_dev == cache.stat().st_dev:
        places = {beside: needed + cache_bytes_needed}
    for place, bytes_needed in places.items():
        free = free_bytes(place)
        if free < bytes_needed:
            raise HostError(
                f"{wanted.path} does not fit",
                f"{bytes_needed / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB are free on "
                f"the file system of {place}.",
                f"Free {(bytes_needed - free) / 1e9:.2f} GB there ('df -h {place}'), for example "
                "an old runtime that no release uses ('fleet runtime list' shows them), then start "
                "again.",
            )


def present_share(beside: Path, packages: dict[str, str], wheel_bytes: dict[str, int]) -> float:
    """The share of an environment, by the sizes of its wheels, that other environments have in the
    same version: uv links these files from its cache, and they take no room again."""
    total = sum(wheel_bytes.values())
    if not total or not uv_cache(beside).is_dir():
        return 0.0
    present: set[tuple[str, str]] = set()
    for path in beside.glob(f"*/{COMPLETE}"):
        record = durable.read_json(path) or {}
        if record.get("installer") == "uv":
            present |= set((record.get("versions") or {}).items())
    shared = sum(
        size for name, size in wheel_bytes.items() if (name, packages.get(name)) in present
    )
    return shared / total


def full(what: str, places: list[Path], tail: list[str]) -> HostError | None:
    """The error of a program that failed because a disk is full; None when none is.

    Its output may not say so: `python -m venv` hides that of the pip that it starts.
    """
    free = {place: free_bytes(place) for place in places if place.is_dir()}
    tight = [place for place, size_bytes in free.items() if size_bytes < FULL_BYTES]
    if not tight and not child.says_no_space(tail):
        return None
    place = tight[0] if tight else min(free, key=lambda one: free[one])
    return HostError(
        what,
        f"no space is left on the disk: {free[place] / 1e6:.0f} MB are free on the file system of "
        f"{place}.",
        f"Free space there ('df -h {place}' and 'df -i {place}'), then start again: nothing "
        "half-built counts, and what has been unpacked is used again.",
        tail,
    )


def uv_cache(beside: Path) -> Path:
    return beside / ".uv-cache"


def _files(directory: Path) -> Iterator[os.stat_result]:
    for path in directory.rglob("*"):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue  # uv may be at work for another environment
        if stat.S_ISREG(found.st_mode):
            yield found


def unused_bytes(cache: Path) -> int:
    """Bytes of uv's cache that no environment shares by a hard link."""
    return sum(found.st_blocks * 512 for found in _files(cache) if found.st_nlink == 1)


def begin_unsynced(path: Path) -> None:
    """Say that what is written from now on is not on the disk for certain: durably, and in /run,
    which a power cut empties.

    uv renames what it has unpacked into its cache without an fsync: after a power cut such a file
    may be there by name and empty, and a later build would link it.
    """
    durable.write_file(_marker(path), "", mode=0o644)
    witness = _witness(path)
    if witness.parent.is_dir():
        witness.touch()


def end_unsynced(path: Path) -> None:
    durable.remove_file(_marker(path))


def _marker(path: Path) -> Path:
    return path.with_name(f".{path.name}{UNSYNCED}")


def _witness(path: Path) -> Path:
    """In the job's RuntimeDirectory, which outlives the job: a job has its environment's name."""
    return layout.run_root() / "llm-environment" / path.name / "unsynced"


def drop_doubtful_cache(beside: Path) -> bool:
    """Remove uv's cache when a build was under way at the last power cut; whether it did."""
    doubtful = [
        marker
        for marker in beside.glob(f".*{UNSYNCED}")
        if not _witness(beside / marker.name[1 : -len(UNSYNCED)]).exists()
    ]
    if not doubtful:
        return False
    durable.remove_tree(uv_cache(beside))
    for marker in doubtful:
        durable.remove_file(marker)
    return True
