"""What happened on this host: {llm_root}/state/events.jsonl, append-only, one JSON object a line.

Each line carries the SHA-256 of the line before it ("previous", 64 zeros in the first), so a line
that was changed, removed or put in between breaks the chain at that place. It proves order and
completeness against accidents and clumsy edits; root can of course rewrite the whole file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import durable, fields, layout
from .errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIRST = "0" * 64
TAIL_BYTES = 1 << 16


def events_path() -> Path:
    return layout.llm_root() / "state" / "events.jsonl"


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    existed = path.exists()
    with durable.writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not existed:
            durable.fsync_directory(path.parent)
        yield descriptor
    finally:
        os.close(descriptor)


def record(what: str, who: str | None = None, **details: Any) -> dict[str, Any]:
    """Append one event durably and return it. who: by default the holder of the lease."""
    path = events_path()
    durable.make_directories(path.parent, mode=0o750)
    with _locked(path) as descriptor:
        _drop_torn_line(descriptor)
        last = _last_line(descriptor)
        event: dict[str, Any] = {
            "when": utc_now(),
            "who": who or holder(),
            "what": what,
            **details,
            "previous": hashlib.sha256(last).hexdigest() if last else FIRST,
        }
        line = (json.dumps(event) + "\n").encode()
        with durable.writing(path, len(line)):
            _append(descriptor, line)
    return event


def _append(descriptor: int, line: bytes) -> None:
    """All of the line or nothing of it."""
    size = os.fstat(descriptor).st_size
    try:
        left = line
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def holder() -> str:
    """Who has the lease: what is asked of this host now is theirs."""
    lease = durable.read_json(layout.llm_root() / "state" / "lease.json")
    return str(lease.get("owner", "unknown")) if isinstance(lease, dict) else "root on this host"


def _drop_torn_line(descriptor: int) -> None:
    """A last line without its newline was cut off by a power cut before it counted."""
    size = os.fstat(descriptor).st_size
    kept = size
    while kept > 0:
        begin = max(0, kept - TAIL_BYTES)
        found = os.pread(descriptor, kept - begin, begin).rfind(b"\n")
        if found >= 0:
            kept = begin + found + 1
            break
        kept = begin
    if kept != size:
        os.ftruncate(descriptor, kept)
        os.fsync(descriptor)


def _last_line(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    length = TAIL_BYTES
    while True:
        begin = max(0, size - length)
        lines = os.pread(descriptor, size - begin, begin).rstrip(b"\n").split(b"\n")
        if len(lines) > 1 or begin == 0:
            return lines[-1]
        length *= 2


def verify(request: dict[str, Any]) -> dict[str, Any]:
    """`events verify` {seen: {events, head} or null} -> {events, head, last}.

    HostError at the first line that does not chain. head: the digest of the last line. seen: what
    an earlier answer said, kept elsewhere: without it nobody could tell lines that were removed at
    the end, or a log that was written anew as a whole. A line that a power cut has left without its
    end does not count.
    """
    seen = request.get("seen")
    seen = seen if isinstance(seen, dict) else {}
    path = events_path()
    head, count, last = FIRST, 0, None
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            event = json.loads(line)
        except ValueError as error:
            raise _broken(path, number, f"it is not JSON ({error})") from error
        if not isinstance(event, dict):
            raise _broken(path, number, "it is no event")
        if event.get("previous") != head:
            raise _broken(path, number, "it does not carry the digest of the line before it")
        head, count, last = hashlib.sha256(line).hexdigest(), number, event
        if number == seen.get("events") and head != seen.get("head"):
            raise _rewritten(path, f"line {number} is another one than it was")
    if count < seen.get("events", 0):
        raise _rewritten(path, f"it has {count} lines, and had {seen['events']}")
    return {"events": count, "head": head, "last": last}


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Without their newlines. Nobody appends meanwhile."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_SH)
        for line in file:
            if line.endswith(b"\n"):
                yield line[:-1]


def _rewritten(path: Path, why: str) -> HostError:
    return HostError(
        f"the event log {path} is not the one that was verified before",
        f"{why}. Its lines chain, so it was cut off at its end, or written anew, by somebody who "
        "is root.",
        "Compare with a backup of the host. If the host was installed anew, take its entry out of "
        "the inventory's audit.json: its log then begins again.",
    )


def _broken(path: Path, number: int, why: str) -> HostError:
    return HostError(
        f"the event log is broken at line {number} of {path}",
        f"{why}: it, or the line before it, was changed, removed or put in afterwards.",
        "Compare with a backup. Lines before this one are as they were written.",
    )


def tail(request: dict[str, Any]) -> dict[str, Any]:
    """`events tail` {lines, containing} -> {events, unreadable: [text]}, the oldest first.

    containing: only lines in which this text is, such as a model's name.
    unreadable: lines among them that are no events, by number and content.
    """
    wanted = fields.whole(request, "lines", 20)
    text, path = str(request.get("containing") or "").encode(), events_path()
    kept: deque[tuple[int, bytes]] = deque(maxlen=max(0, wanted))
    kept.extend(line for line in enumerate(_whole_lines(path), start=1) if text in line[1])
    found, unreadable = [], []
    for number, line in kept:
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict):
            found.append(event)
        else:
            shown = line.decode("utf-8", "backslashreplace")[:200]
            unreadable.append(f"line {number} of {path} is no event: {shown}")
    return {"events": found, "unreadable": unreadable}
