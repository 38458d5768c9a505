"""The record beside a published model (MODEL/REVISION.json): what it is, and that it was verified.

  {schema, model_id, hub, endpoint, revision, commit, model_digest, total_bytes, verified_at,
   deep_verified_at, mended: {when, files} or null,
   files: [{path, size, sha256, mtime_ns, ctime_ns, inode, damaged?}]}
verified_at: when the record was written. deep_verified_at: when every byte was last read from the
disk. A file that is not as its row says, or that has "damaged" (what a verification found), counts
as not verified until the next pull has looked after it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from . import SCHEMA_VERSION, durable
from .errors import HostError
from .integrity import Stat, Verdict, extra_files, stat_of
from .listing import FileEntry, model_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

ANEW = "Remove it and deploy again: the model is then verified anew and gets its record."


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def record_path(directory: Path) -> Path:
    """The record beside a model's directory. Revisions contain dots: no with_suffix here."""
    return directory.with_name(directory.name + ".json")


def row_of(entry: FileEntry, stat: Stat) -> dict[str, Any]:
    """A file's row: what it is, and its stat when it was found to be that."""
    return {
        **entry.as_dict(),
        "mtime_ns": stat.mtime_ns,
        "ctime_ns": stat.ctime_ns,
        "inode": stat.inode,
    }


def stat_in(row: Mapping[str, Any]) -> Stat:
    return Stat(row["size"], row["mtime_ns"], row["inode"], row.get("ctime_ns"))


def entry_in(row: Mapping[str, Any]) -> FileEntry:
    return FileEntry(row["path"], row["size"], row["sha256"])


def write_record(
    directory: Path,
    verdicts: list[Verdict],
    origin: Mapping[str, Any],
    *,
    mended: Mapping[str, Any] | None = None,
    deep_verified_at: str | None = None,
) -> Path:
    """The durable record of a verified model. origin: model_id, hub, endpoint, revision, commit."""
    entries = tuple(verdict.entry for verdict in verdicts)
    now = utc_now()
    record = {
        "schema": SCHEMA_VERSION,
        **origin,
        "model_digest": model_digest(entries),
        "total_bytes": sum(entry.size_bytes for entry in entries),
        "verified_at": now,
        "deep_verified_at": deep_verified_at or now,
        "mended": dict(mended) if mended else None,
        "files": [
            row_of(verdict.entry, verdict.stat)
            for verdict in sorted(verdicts, key=lambda verdict: verdict.entry)
            if verdict.stat is not None
        ],
    }
    path = record_path(directory)
    durable.write_json(path, record)
    return path


def read_record(directory: Path) -> dict[str, Any] | None:
    """A model's record, or None when there is none. HostError for one that cannot be trusted."""
    path = record_path(directory)
    try:
        record = durable.read_json(path)
    except HostError as error:
        raise HostError(error.what, error.why, ANEW) from error
    if record is None:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("files"), list):
        raise HostError(f"{path} is no model record", "it has no list of files.", ANEW)
    schema = record.get("schema", 0)
    if not isinstance(schema, int):
        raise HostError(f"{path} is no model record", f"its schema is {schema!r}.", ANEW)
    if schema > SCHEMA_VERSION:
        raise HostError(
            f"{path} was written by a newer program",
            f"it has schema {schema}, this program knows {SCHEMA_VERSION}.",
            "Deploy with the newer version.",
        )
    return record


def read_files(directory: Path) -> dict[str, Any] | None:
    """As read_record, for who needs each file's row, which older programs wrote otherwise."""
    record = read_record(directory)
    if record is not None and not all(map(_is_row, record["files"])):
        what = f"{record_path(directory)} is no model record"
        raise HostError(what, "not every file in it has its row.", ANEW)
    return record


def _is_row(row: object) -> bool:
    if not isinstance(row, dict):
        return False
    texts, numbers = (row.get("path"), row.get("sha256")), ("size", "mtime_ns", "inode")
    ctime_ns = row.get("ctime_ns")
    return (
        all(isinstance(one, str) for one in texts)
        and all(isinstance(row.get(key), int) for key in numbers)
        and (ctime_ns is None or isinstance(ctime_ns, int))
    )


def require_record(directory: Path) -> dict[str, Any]:
    """The record of a model that has to be published. HostError when it is not."""
    record = read_files(directory)
    if record is None or not directory.is_dir():
        raise HostError(
            f"{directory} is not a published model",
            "its directory does not exist." if record else "it has no record of a verification.",
            "Run the deploy: the pull publishes and verifies it.",
        )
    return record


def recorded_entries(record: Mapping[str, Any]) -> tuple[FileEntry, ...]:
    return tuple(entry_in(row) for row in record["files"])


def touched_entries(directory: Path, record: Mapping[str, Any]) -> list[FileEntry]:
    """The recorded files that are not as recorded, are gone, or were found damaged."""
    return [
        entry_in(row)
        for row in record["files"]
        if row.get("damaged") or not stat_in(row).same(stat_of(directory / row["path"]))
    ]


def strays_in(directory: Path, entries: Iterable[FileEntry]) -> list[str]:
    return [path.relative_to(directory).as_posix() for path in extra_files(directory, entries)]


def renew(
    directory: Path,
    record: Mapping[str, Any],
    verdicts: Iterable[Verdict],
    *,
    deep: bool,
) -> bool:
    """Put what a verification found into the record; whether that changed it.

    A file that is good again loses its mark; nothing here touches the model's own directory.
    deep: these verdicts are of every file, read from the disk.
    """
    found = {verdict.entry.path: verdict for verdict in verdicts}
    rows = []
    for old in record["files"]:
        verdict = found.get(old["path"])
        row = dict(old)
        if verdict is not None and verdict.stat is not None and verdict.problem is None:
            row = row_of(verdict.entry, verdict.stat)
        elif verdict is not None:
            row["damaged"] = verdict.problem
        rows.append(row)
    renewed = {**record, "files": rows, "verified_at": utc_now()}
    if deep:
        renewed["deep_verified_at"] = renewed["verified_at"]
    if not deep and rows == record["files"]:
        return False
    durable.write_json(record_path(directory), renewed)
    return True
