"""`engine log` ENGINE, the main process of llm-log@ENGINE.service: the engine's log as a file.

The journal stays what everything else reads; this follows it into /var/log/llm/ENGINE.log and
begins a new file at max_mb, so that never more than max_mb * (keep + 1) is taken. Where it was is
kept in /var/lib/llm-log-ENGINE/cursor: after a restart it goes on there, and a line or two may come
twice, none is lost that the journal still has.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from typing import IO, TYPE_CHECKING, Any

from . import durable, engine, fields, layout, stamp
from .errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

CURSOR_EVERY_SECONDS = 5.0
MB = 1_000_000


def configuration_path(name: str) -> Path:
    return layout.etc_root() / "llm" / f"log-{name}.json"


def log_path(name: str) -> Path:
    return layout.log_root() / "llm" / f"{name}.log"


def cursor_path(name: str) -> Path:
    return layout.state_root() / f"llm-log-{name}" / "cursor"


class RotatedFile:
    """A file that is renamed to .1 when it is full, .1 to .2 and so on; the oldest goes."""

    def __init__(self, path: Path, full_bytes: int, keep: int) -> None:
        self._path, self._full_bytes, self._keep = path, full_bytes, keep
        self._open()
        self._drop_beyond()

    def _open(self) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        self._bytes = os.fstat(descriptor).st_size

    def numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _drop_beyond(self) -> None:
        """Files of a larger `keep` that was set before."""
        for path in self._path.parent.glob(f"{self._path.name}.*"):
            number = path.name.rpartition(".")[2]
            if number.isdigit() and int(number) > self._keep:
                path.unlink()

    def write(self, line: bytes) -> None:
        if self._bytes and self._bytes + len(line) > self._full_bytes:
            self._rotate()
        self._file.write(line)
        self._bytes += len(line)

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._keep, 0, -1):
            older = self.numbered(number - 1) if number > 1 else self._path
            if older.exists():
                older.replace(self.numbered(number))
        self._open()

    def close(self) -> None:
        self._file.close()


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Follow until SIGTERM. HostError when journalctl ends by itself; systemd starts it again."""
    name = engine.name_of(request)
    document = durable.read_json(configuration_path(name))
    if not isinstance(document, dict):
        raise HostError(
            f"the log of engine {name} is not wanted as a file",
            f"{configuration_path(name)} does not exist.",
            "Run the deploy, which writes it.",
        )
    file = RotatedFile(
        log_path(name), fields.whole(document, "max_mb") * MB, fields.whole(document, "keep")
    )
    stop = threading.Event()
    process = _follow(name)

    def end(_signal: int, _frame: FrameType | None) -> None:
        stop.set()
        process.terminate()

    signal.signal(signal.SIGTERM, end)
    stamp.write(f"llm-log-{name}", configuration_path(name), "llm-log@")
    try:
        assert process.stdout is not None
        _copy(process.stdout, file, cursor_path(name))
    finally:
        process.kill()
        process.wait()
        file.close()
    if not stop.is_set():
        raise HostError(
            f"journalctl stopped following engine {name}",
            f"it ended with {process.returncode}.",
            "It is started again; its own words are above, in this unit's journal.",
        )
    return {"stopped": True}


def _follow(name: str) -> subprocess.Popen[bytes]:
    # Without a cursor from now on: the journal has what was before.
    path = cursor_path(name)
    cursor = path.read_text().strip() if path.exists() else ""
    begin = f"--after-cursor={cursor}" if cursor else "--lines=0"
    # Following asks for this boot by its ID, whatever --boot says (systemd 252), unless it merges.
    # In a container the unit's own /proc has another ID than the journal.
    machine = (layout.etc_root() / "machine-id").read_text().strip()
    command = ["journalctl", "--follow", "--merge", "--output=json", "--quiet", begin]
    return subprocess.Popen(
        [*command, f"--unit=llm-engine@{name}.service", f"_MACHINE_ID={machine}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


def _copy(source: IO[bytes], file: RotatedFile, cursor: Path) -> None:
    kept_at, last = time.monotonic(), ""
    try:
        for line, position in _lines(source):
            file.write(line)
            last = position
            if time.monotonic() - kept_at > CURSOR_EVERY_SECONDS:
                durable.write_file(cursor, last + "\n")
                kept_at = time.monotonic()
    finally:
        if last:
            durable.write_file(cursor, last + "\n")


def _lines(source: IO[bytes]) -> Iterator[tuple[bytes, str]]:
    for raw in source:
        try:
            entry = json.loads(raw)
        except ValueError:
            continue  # cut short when journalctl was ended
        yield text_of(entry), str(entry.get("__CURSOR", ""))


def text_of(entry: dict[str, Any]) -> bytes:
    """One entry as a line: UTC time, then the message. What is not UTF-8 comes as a list of bytes
    (systemd.journal-export's JSON)."""
    message = entry.get("MESSAGE")
    if isinstance(message, list):
        message = bytes(message).decode("utf-8", "replace")
    microseconds = int(entry.get("__REALTIME_TIMESTAMP", 0))
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(microseconds // 1_000_000))
    text = str(message or "").replace("\n", "\n  ")
    return f"{when}.{microseconds % 1_000_000 // 1000:03d}Z {text}\n".encode()
