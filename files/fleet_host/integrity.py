"""Whether the files of a model are what the hub listed: size, SHA-256, safetensors header.

A published model has a record beside it (MODEL/REVISION.json):
  {schema, model_id, hub, endpoint, revision, commit, model_digest, total_bytes, verified_at,
   files: [{path, size, sha256, mtime_ns, inode}]}
Hashing is by hashlib with a 1 MiB buffer in threads: 1.0-1.4 GB per core-second, while Debian 12's
sha256sum does 0.2 and larger buffers are slower (measured, one Zen 3 core).
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import SCHEMA_VERSION, durable
from .errors import HostError, SpecError
from .listing import FileEntry, model_digest, name_problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .status import Progress

BUFFER_BYTES = 1024 * 1024
# safetensors format: at most 100 MB of JSON after its 8-byte little-endian length.
LARGEST_HEADER_BYTES = 100_000_000
MOST_THREADS = 16


class Cancelled(Exception):
    """Hashing was given up because its caller stops."""


@dataclass(frozen=True)
class Stat:
    """What tells cheaply that a verified file was not touched since."""

    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True)
class Verdict:
    """The outcome for one file: problem is None when it is good, and stat is then as hashed."""

    entry: FileEntry
    problem: str | None
    stat: Stat | None


def stat_of(path: Path) -> Stat | None:
    """None when there is no regular file. Symbolic links do not count as files."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not os.path.isfile(path) or os.path.islink(path):  # noqa: PTH113, PTH114
        return None
    return Stat(found.st_size, found.st_mtime_ns, found.st_ino)


def sha256_of(path: Path, advance: Any = None, cancelled: threading.Event | None = None) -> str:
    """SHA-256 of a file in hex; advance(bytes) is called for each buffer."""
    digest = hashlib.sha256()
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
            if advance is not None:
                advance(count)
            if cancelled is not None and cancelled.is_set():
                raise Cancelled
    return digest.hexdigest()


def safetensors_problem(path: Path) -> str | None:
    """Whether the header and the file's length disagree (a cut or padded file)."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(LARGEST_HEADER_BYTES, size - 8):
            return "is no safetensors file: its header does not fit into it"
        try:
            header = json.loads(file.read(length))
            tensors = [header[name] for name in header if name != "__metadata__"]
            end = max((tensor["data_offsets"][1] for tensor in tensors), default=0)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            return f"has an unreadable safetensors header ({type(error).__name__}: {error})"
    if 8 + length + end != size:
        return f"holds {size} bytes where its safetensors header says {8 + length + end}"
    return None


def verify_file(
    directory: Path,
    entry: FileEntry,
    *,
    sync: bool = False,
    advance: Any = None,
    cancelled: threading.Event | None = None,
) -> Verdict:
    """One file against its entry. sync: fsync it first, so that "good" outlives a power cut."""
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
        found = sha256_of(path, advance, cancelled)
        if found != entry.sha256:
            return Verdict(entry, f"has SHA-256 {found}, the hub lists {entry.sha256}", None)
        header = safetensors_problem(path) if entry.path.endswith(".safetensors") else None
    except OSError as error:
        # A disk that fails (EIO) is a damaged file, not a defect of this program.
        return Verdict(entry, f"cannot be read ({error.strerror})", None)
    if header:
        return Verdict(entry, header, None)
    if stat_of(path) != before:
        return Verdict(entry, "changed while it was read", None)
    return Verdict(entry, None, before)


def verify_files(
    directory: Path,
    entries: Iterable[FileEntry],
    *,
    progress: Progress | None = None,
    sync: bool = False,
    on_verdict: Any = None,
) -> list[Verdict]:
    """Verify files in threads, largest first (so that no thread ends with the largest alone).

    on_verdict(verdict) is called in the calling thread as each is done. Interrupted by any
    exception, a SIGTERM's too, the threads stop within a buffer.
    """
    order = sorted(entries, key=lambda entry: entry.size_bytes, reverse=True)
    lock, cancelled = threading.Lock(), threading.Event()
    hashed = [0]

    def advance(count: int) -> None:
        with lock:
            hashed[0] += count
            if progress is not None:
                progress.advance(hashed[0])

    threads = min(MOST_THREADS, os.cpu_count() or 1)
    verdicts = []
    with ThreadPoolExecutor(threads) as pool:
        futures = [
            pool.submit(
                verify_file, directory, entry, sync=sync, advance=advance, cancelled=cancelled
            )
            for entry in order
        ]
        try:
            for future in futures:
                verdicts.append(future.result())
                if on_verdict is not None:
                    on_verdict(verdicts[-1])
        except BaseException:
            cancelled.set()
            pool.shutdown(cancel_futures=True)
            raise
    return sorted(verdicts, key=lambda verdict: verdict.entry)


def record_path(directory: Path) -> Path:
    """The record beside a model's directory. Revisions contain dots: no with_suffix here."""
    return directory.with_name(directory.name + ".json")


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


def write_record(directory: Path, verdicts: list[Verdict], origin: dict[str, Any]) -> Path:
    """The durable record of a verified model. origin: model_id, hub, endpoint, revision, commit."""
    files = [
        {
            **verdict.entry.as_dict(),
            "mtime_ns": verdict.stat.mtime_ns,
            "inode": verdict.stat.inode,
        }
        for verdict in sorted(verdicts, key=lambda verdict: verdict.entry)
        if verdict.stat is not None
    ]
    entries = tuple(verdict.entry for verdict in verdicts)
    record = {
        "schema": SCHEMA_VERSION,
        **origin,
        "model_digest": model_digest(entries),
        "total_bytes": sum(entry.size_bytes for entry in entries),
        "verified_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "files": files,
    }
    path = record_path(directory)
    durable.write_json(path, record)
    return path


def read_record(directory: Path) -> dict[str, Any] | None:
    """A model's record, or None when there is none. HostError for one that cannot be trusted."""
    path = record_path(directory)
    record = durable.read_json(path)
    if record is None:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("files"), list):
        raise HostError(
            f"{path} is no model record",
            "it has no list of files.",
            "Remove it and deploy again: the model is then verified anew and gets its record.",
        )
    if record.get("schema", 0) > SCHEMA_VERSION:
        raise HostError(
            f"{path} was written by a newer program",
            f"it has schema {record['schema']}, this program knows {SCHEMA_VERSION}.",
            "Deploy with the newer version.",
        )
    return record


def recorded_entries(record: dict[str, Any]) -> tuple[FileEntry, ...]:
    return tuple(FileEntry(file["path"], file["size"], file["sha256"]) for file in record["files"])


def touched_entries(directory: Path, record: dict[str, Any]) -> list[FileEntry]:
    """The recorded files whose size, mtime or inode are not as recorded, or which are gone."""
    return [
        FileEntry(file["path"], file["size"], file["sha256"])
        for file in record["files"]
        if stat_of(directory / file["path"]) != Stat(file["size"], file["mtime_ns"], file["inode"])
    ]


def check_model(directory: Path, *, deep: bool, progress: Progress | None = None) -> dict[str, Any]:
    """{ok, model_digest, files, bytes, touched, damaged, extra}: a published model as it is now.

    Not deep: size, mtime and inode of every file (milliseconds); a touched file is not ok, as
    nobody knows what it holds. deep: every file is hashed, and only what is wrong counts.
    damaged: [{path, problem}].
    """
    record = read_record(directory)
    if record is None or not directory.is_dir():
        raise HostError(
            f"{directory} is not a published model",
            "its directory does not exist." if record else "it has no record of a verification.",
            "Run the deploy: the pull publishes and verifies it.",
        )
    entries = recorded_entries(record)
    touched = touched_entries(directory, record)
    extra = extra_files(directory, entries)
    if deep:
        total = sum(entry.size_bytes for entry in entries)
        if progress is not None:
            progress.phase("verify", total=total, unit="bytes", message=str(directory))
        verdicts = verify_files(directory, entries, progress=progress)
        damaged = [(verdict.entry.path, verdict.problem) for verdict in verdicts if verdict.problem]
    else:
        damaged = [(entry.path, "was touched since it was verified") for entry in touched]
    return {
        "ok": not damaged and not extra,
        "model_digest": record["model_digest"],
        "files": len(entries),
        "bytes": record["total_bytes"],
        "touched": [entry.path for entry in touched],
        "damaged": [{"path": path, "problem": problem} for path, problem in damaged],
        "extra": [path.relative_to(directory).as_posix() for path in extra],
    }


def verify_command(request: dict[str, Any]) -> dict[str, Any]:
    """`fleet-host model verify` {path, deep: false} -> check_model's answer when all is well.

    HostError that names the files otherwise, so that no caller overlooks a damaged model.
    """
    path, deep = request.get("path"), request.get("deep", False)
    if not isinstance(path, str) or not path.startswith("/") or not isinstance(deep, bool):
        raise SpecError(
            "'model verify' cannot read its request",
            f"path is {path!r}, deep is {deep!r}.",
            'Give {"path": "/srv/llm/models/OWNER--NAME/REVISION", "deep": true or false}.',
        )
    if name_problem(path.lstrip("/")):
        raise SpecError(f"{path!r} is not a plain path", "it is not normalised.", "Correct it.")
    started = time.monotonic()
    found = check_model(Path(path), deep=deep)
    if not found["ok"]:
        lines = [f"{file['path']} {file['problem']}" for file in found["damaged"]]
        lines += [f"{name} does not belong to the model" for name in found["extra"]]
        raise HostError(
            f"{path} is not as it was verified",
            f"{len(found['damaged'])} files are wrong and {len(found['extra'])} do not belong.",
            "Run the pull of this model again: it hashes the files and mends the damaged ones.",
            lines[:50],
        )
    return {**found, "seconds": round(time.monotonic() - started, 3)}
