"""Whether the files of a model are what was listed: size, SHA-256, safetensors header and index."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import durable, hashing, safetensors
from .errors import HostError
from .listing import INDEX, FileEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .status import Progress


@dataclass(frozen=True)
class Stat:
    """What tells cheaply that a verified file was not touched since.

    ctime_ns: nobody can set it, while mtime is kept by `cp -p`, rsync and tar; None: not known, of
    a record from before it was kept.
    """

    size_bytes: int
    mtime_ns: int
    inode: int
    ctime_ns: int | None = None

    def same(self, other: Stat | None, *, but_ctime: bool = False) -> bool:
        """Whether the file was not touched between the two; unknown ctimes are not compared."""
        if other is None:
            return False
        mine = (self.size_bytes, self.mtime_ns, self.inode)
        known = not but_ctime and self.ctime_ns is not None and other.ctime_ns is not None
        return mine == (other.size_bytes, other.mtime_ns, other.inode) and (
            not known or self.ctime_ns == other.ctime_ns
        )


@dataclass(frozen=True)
class Verdict:
    """The outcome for one file: problem is None when it is good, and stat is then as hashed."""

    entry: FileEntry
    problem: str | None
    stat: Stat | None


def stat_of(path: Path) -> Stat | None:
    """None when there is no regular file. Symbolic links do not count as files."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return Stat(found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns)


def verify_file(
    directory: Path,
    entry: FileEntry,
    *,
    sync: bool = False,
    from_disk: bool = False,
    tally: hashing.Tally | None = None,
) -> Verdict:
    """One file against its entry. sync: fsync it first, so that "good" outlives a power cut.
    from_disk: read what the disk has, not what the page cache remembers of it."""
    path = directory / entry.path
    before = stat_of(path)
    if before is None:
        return Verdict(entry, "is missing", None)
    if before.size_bytes != entry.size_bytes:
        problem = f"holds {before.size_bytes} bytes, the hub lists {entry.size_bytes}"
        return Verdict(entry, problem, None)
    try:
        if sync:
            durable.fsync_file(path)
        found = hashing.sha256_of(path, tally, from_disk=from_disk)
        if found != entry.sha256:
            return Verdict(entry, f"has SHA-256 {found}, the hub lists {entry.sha256}", None)
    except OSError as error:
        # A disk that fails (EIO) is a damaged file, not a defect of this program.
        return Verdict(entry, f"cannot be read ({error.strerror})", None)
    if stat_of(path) != before:
        return Verdict(entry, "changed while it was read", None)
    return Verdict(entry, None, before)


def with_header(directory: Path, verdict: Verdict) -> Verdict:
    """The verdict, worse where a safetensors file's header and its length disagree: a hub that
    lists a cut shard with the cut shard's hash passes every other check."""
    if verdict.problem is None and verdict.entry.path.endswith(".safetensors"):
        try:
            problem = safetensors.problem_of(directory / verdict.entry.path)
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        if problem is not None:
            return Verdict(verdict.entry, problem, None)
    return verdict


def verify_files(
    directory: Path,
    entries: Iterable[FileEntry],
    *,
    progress: Progress | None = None,
    sync: bool = False,
    from_disk: bool = False,
    on_verdict: Callable[[Verdict], None] | None = None,
    on_tick: Callable[[], None] | None = None,
) -> list[Verdict]:
    """Verify files in threads, largest first (so that no thread ends with the largest alone).

    on_verdict(verdict) is called in the calling thread as each is done. Headers are read there too,
    one at a time, while the threads go on. on_tick() is called there four times a second; what it
    raises ends it. Interrupted by any exception, a SIGTERM's too, the
    threads stop within a buffer.
    """
    order = sorted(entries, key=lambda entry: entry.size_bytes, reverse=True)
    verdicts: list[Verdict] = []

    def done_with(verdict: Verdict) -> None:
        verdicts.append(with_header(directory, verdict))
        if on_verdict is not None:
            on_verdict(verdicts[-1])

    def work(entry: FileEntry, tally: hashing.Tally) -> Verdict:
        return verify_file(directory, entry, sync=sync, from_disk=from_disk, tally=tally)

    def report(done_bytes: int) -> None:
        if progress is not None:
            progress.advance(done_bytes)
        if on_tick is not None:
            on_tick()

    hashing.in_threads(order, work, done_with, report)
    return sorted(verdicts, key=lambda verdict: verdict.entry)


def index_problems(directory: Path, entries: Iterable[FileEntry]) -> list[tuple[str, str]]:
    """(file, problem) where the index and the shards disagree; without an index there are none."""
    paths = [entry.path for entry in entries]
    return safetensors.index_problems(directory, INDEX, paths) if INDEX in paths else []


def require_index(directory: Path, entries: Iterable[FileEntry], where: str) -> None:
    """HostError for a model whose files are all as listed, and do not belong together."""
    problems = index_problems(directory, entries)
    if problems:
        lines = [f"{path} {problem}" for path, problem in problems]
        raise HostError(
            f"{where} is broken where it comes from",
            f"every file is as it is listed there, but {lines[0]}. An engine would load for "
            "minutes and then fail, or miss weights.",
            "Report it to whoever made the model, and use another revision.",
            lines[:50],
        )


def extra_files(directory: Path, entries: Iterable[FileEntry]) -> list[Path]:
    """What is in the directory and not in the listing: files, links, and directories of no use."""
    wanted = {entry.path for entry in entries}
    kept = {parent.as_posix() for path in wanted for parent in Path(path).parents}
    extra: list[Path] = []
    for root, directories, names in os.walk(directory):
        here = Path(root)
        for name in list(directories):
            relative = (here / name).relative_to(directory).as_posix()
            if relative not in kept or (here / name).is_symlink():
                directories.remove(name)
                extra.append(here / name)
        for name in names:
            path = here / name
            if path.relative_to(directory).as_posix() not in wanted or path.is_symlink():
                extra.append(path)
    return sorted(extra)
