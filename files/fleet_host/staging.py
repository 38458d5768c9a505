"""Where a model is gathered before it is published, and what of it can be trusted after a crash.

models/.incoming/OWNER--NAME/REVISION/
  lock.json       the hub's listing, durable before the first byte: what the files must be
  model/          the files, as the client writes them; becomes models/OWNER--NAME/REVISION
  verified.json   files found good, with their stat, so that a resumed pull hashes them once
  home/           the client's HOME and cache
  aside/          what was moved out of the model; goes when the model is published
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import SCHEMA_VERSION, durable, locking
from .client import PARTIAL
from .errors import HostError
from .integrity import Verdict, extra_files, stat_of
from .listing import FileEntry, Listing
from .model_record import record_path, row_of, stat_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .status import Progress

SAVE_INTERVAL_SECONDS = 5.0
# A verification looks four times a second who wants the model.
GIVE_WAY_SECONDS = 60.0


@dataclass(frozen=True)
class Places:
    """Where a model is, and where it is gathered."""

    final: Path
    staging: Path

    @property
    def model(self) -> Path:
        return self.staging / "model"

    @property
    def lock(self) -> Path:
        return self.staging / "lock.json"

    @property
    def verified(self) -> Path:
        return self.staging / "verified.json"

    @property
    def record(self) -> Path:
        return record_path(self.final)


def places(target: Path, model_id: str, revision: str) -> Places:
    """The places of owner/name at a revision below {llm_root}/models."""
    name = model_id.replace("/", "--")
    return Places(target / name / revision, target / ".incoming" / name / revision)


@contextmanager
def held(place: Places, progress: Progress | None = None) -> Iterator[None]:
    """Hold the model: two clients with different HOMEs both write into one directory.

    A verification has it too, for hours, and gives way to whoever holds the lock of pulls.
    """
    durable.make_directories(place.staging)
    durable.make_directories(place.final.parent)

    def say() -> None:
        if progress is not None:
            message = f"for a verification (llm-verify@*) of {place.final} to give way"
            progress.phase("waiting", message=message)

    with locking.held(
        pulls_lock(place.staging),
        f"{place.final} is being pulled already",
        "Wait for it: 'systemctl list-units \"llm-pull@*\"' shows which job it is.",
        patience_seconds=1.0,
    ), locking.held(
        place.staging.with_name(f".{place.staging.name}.lock"),
        f"{place.final} is being verified or removed, and did not become free",
        f"A verification should have given way within {GIVE_WAY_SECONDS:.0f} s. See 'systemctl "
        "list-units \"llm-verify@*\"'; it can be stopped, changes no model, and goes on at its "
        "next time. Wait for a removal ('fleet model remove'). Then run again.",
        patience_seconds=GIVE_WAY_SECONDS,
        on_wait=say,
    ):  # fmt: skip
        yield


def pulls_lock(staging: Path) -> Path:
    """Held by a pull from before it has the model: a verification that has it then gives way."""
    return staging.with_name(f".{staging.name}.pull.lock")


def write_lock(place: Places, origin: dict[str, Any], listing: Listing) -> None:
    files = [entry.as_dict() for entry in listing.entries]
    document = {"schema": SCHEMA_VERSION, **origin, "commit": listing.commit, "files": files}
    durable.write_json(place.lock, document)


def read_lock(place: Places) -> Listing | None:
    """The listing that the files in staging were pulled by; None when there is none."""
    document = durable.read_json(place.lock)
    if document is None:
        return None
    entries = (FileEntry(file["path"], file["size"], file["sha256"]) for file in document["files"])
    return Listing(tuple(sorted(entries)), document["commit"])


def remembered(
    place: Places, entries: tuple[FileEntry, ...], directory: Path | None = None
) -> dict[str, Verdict]:
    """Files that an earlier run found good and that nobody touched since. directory: where they are
    by now, None for staging.

    Each was fsynced before it was hashed, so a power cut cannot have emptied it since.
    """
    known = durable.read_json(place.verified) or {}
    directory = directory or place.model
    good = {}
    for entry in entries:
        row = known.get(entry.path)
        if row and row["sha256"] == entry.sha256 and row["size"] == entry.size_bytes:
            stat = stat_of(directory / entry.path)
            if stat is not None and stat_in(row).same(stat):
                good[entry.path] = Verdict(entry, None, stat)
    return good


class Memory:
    """The good files so far, saved now and then: hashing 235 GB twice would cost minutes."""

    def __init__(
        self,
        place: Places,
        good: dict[str, Verdict],
        interval_seconds: float = SAVE_INTERVAL_SECONDS,
    ) -> None:
        self._place = place
        self.good = dict(good)
        self._interval_seconds = interval_seconds
        self._saved_at = time.monotonic()
        self._unsaved = False

    def add(self, verdict: Verdict) -> None:
        if verdict.problem is None:
            self.good[verdict.entry.path] = verdict
            self._unsaved = True
        self.save_when_due()

    def save_when_due(self) -> None:
        if self._unsaved and time.monotonic() - self._saved_at >= self._interval_seconds:
            self.save()

    def save(self) -> None:
        self._saved_at = time.monotonic()
        self._unsaved = False
        rows = {
            path: row_of(verdict.entry, verdict.stat)
            for path, verdict in self.good.items()
            if verdict.stat is not None
        }
        durable.write_json(self._place.verified, rows)


def move_aside(aside: Path, directory: Path, paths: list[Path]) -> list[str]:
    """Move files or directories out of a model's directory; their names relative to it."""
    if not paths:
        return []
    durable.make_directories(aside)
    for path in paths:
        path.rename(aside / f"{secrets.token_hex(4)}-{path.name}")
    return [path.relative_to(directory).as_posix() for path in paths]


def move_strays(place: Places, listing: Listing, *, keep_partial: bool) -> list[str]:
    """Move what does not belong to the model out of staging/model. keep_partial: leave the partial
    files of listed files, from which the client resumes."""
    partial = {entry.path + PARTIAL for entry in listing.entries}
    strays = [
        path
        for path in extra_files(place.model, listing.entries)
        if not (keep_partial and path.relative_to(place.model).as_posix() in partial)
    ]
    return move_aside(place.staging / "aside", place.model, strays)


def make_read_only(directory: Path) -> None:
    """Files 0444, directories 0555, except the top: renaming a directory to another parent needs
    write permission on itself (rename(2), EACCES)."""
    for root, _, names in os.walk(directory, topdown=False):
        for name in names:
            set_mode(Path(root, name), 0o444)
        set_mode(Path(root), 0o755 if Path(root) == directory else 0o555)


def sealed(directory: Path, verdicts: list[Verdict], *, renamed: bool = False) -> list[Verdict]:
    """The verdicts of files that have been made read-only, with the stat that they have now.

    A chmod sets the ctime anew, and so does a rename of the file (renamed), but nothing else may
    have happened since they were hashed. HostError otherwise.
    """
    current = [Verdict(it.entry, None, stat_of(directory / it.entry.path)) for it in verdicts]
    refuse_changed(directory, verdicts, current, but_ctime=renamed)
    make_read_only(directory)
    # Whoever had it open before can write still, and the record must not call that verified.
    final = [Verdict(it.entry, None, stat_of(directory / it.entry.path)) for it in verdicts]
    refuse_changed(directory, verdicts, final, but_ctime=True)
    return final


def refuse_changed(
    directory: Path, earlier: list[Verdict], later: list[Verdict], *, but_ctime: bool
) -> None:
    for before, now in zip(earlier, later, strict=True):
        if before.stat is None or not before.stat.same(now.stat, but_ctime=but_ctime):
            raise HostError(
                f"{directory / now.entry.path} changed after it was verified",
                "somebody writes into the model's directory.",
                "Find out who (its owner, 'fuser'), then pull again.",
            )


def close_directories(directory: Path) -> None:
    """Read-only again, after a run that was killed while they were not; files stay as they are."""
    for root, _, _ in os.walk(directory):
        set_mode(Path(root), 0o555)


def set_mode(path: Path, mode: int) -> None:
    """chmod where it is needed: a file that somebody else owns may be right as it is."""
    if path.stat().st_mode & 0o7777 != mode:
        path.chmod(mode)


def free_bytes(directory: Path) -> int:
    """Bytes that an unprivileged user may still write there (blocks reserved for root excluded)."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize
