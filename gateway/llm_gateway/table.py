"""The keys in force: read from files, kept in memory, read again when a file changes.

Nginx asks for every request, so a look costs nothing unless half a second has passed, and then one
stat(2) a file. A file that became unreadable or invalid changes nothing: the keys that were good
stay in force and the log says so. Until the first file has been read once there is no table, and
whoever asks is told to fail closed.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from .keys import MAX_FILE_BYTES, Key, KeyFile, KeyFileError, parse_key_file
from .watched import CHECK_INTERVAL_SECONDS, Signature, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

log = logging.getLogger("llm_gateway")

__all__ = ["CHECK_INTERVAL_SECONDS", "KeyTable"]


class _Source:
    """One key file and what was last read from it. A required file that is missing is an error."""

    def __init__(self, path: Path, *, required: bool) -> None:
        self.path = path
        self.required = required
        self.file: KeyFile | None = None
        self._seen: Signature | str | None = None

    def refresh(self) -> bool:
        """Read the file if it changed since the last look; True when other keys are in force."""
        try:
            with self.path.open("rb") as stream:
                signature = signature_of(stream.fileno())
                if signature == self._seen:
                    return False
                self._seen = signature
                content = stream.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return self._missing()
        except OSError as error:
            self._complain(f"cannot be read: {error.strerror}")
            return False
        return self._take(content)

    def _take(self, content: bytes) -> bool:
        try:
            if len(content) > MAX_FILE_BYTES:
                raise KeyFileError(f"it is larger than {MAX_FILE_BYTES} bytes")
            self.file = parse_key_file(content)
        except KeyFileError as error:
            log.error("%s: %s; %s", self.path, error, self._consequence())
            return False
        log.info("%s: serial %d, %d keys", self.path, self.file.serial, len(self.file.keys))
        return True

    def _missing(self) -> bool:
        if self.required:
            self._complain("does not exist")
            return False
        changed = self.file is not None and bool(self.file.keys)
        self.file = None
        self._seen = None
        return changed

    def _complain(self, problem: str) -> None:
        # Once for each new problem, not twice a second for as long as it lasts.
        if self._seen != problem:
            self._seen = problem
            log.error("%s: %s; %s", self.path, problem, self._consequence())

    def _consequence(self) -> str:
        if self.file is not None:
            return f"the keys of serial {self.file.serial} stay in force"
        if self.required:
            return "no key is known, every request is refused with 503"
        return "its keys are not in force"


class KeyTable:
    """The keys of several files by id. The first path is required, the others may be missing."""

    def __init__(self, paths: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        if not paths:
            raise ValueError("at least one key file is needed")
        self._sources = [_Source(path, required=index == 0) for index, path in enumerate(paths)]
        self._clock = clock
        self._next_check: float | None = None
        self._keys: dict[str, Key] = {}

    def current(self) -> dict[str, Key] | None:
        """The keys in force, or None as long as the required file was never read."""
        now = self._clock()
        if self._next_check is None or now >= self._next_check:
            self._next_check = now + CHECK_INTERVAL_SECONDS
            changes = [source.refresh() for source in self._sources]
            if any(changes):
                self._merge()
        return self._keys if self._sources[0].file is not None else None

    def serial(self) -> int | None:
        """The serial number of the required file as it is in force."""
        file = self._sources[0].file
        return file.serial if file else None

    def _merge(self) -> None:
        merged: dict[str, Key] = {}
        for source in self._sources:
            for key in source.file.keys if source.file else ():
                if merged.setdefault(key.id, key) is not key:
                    log.error("%s: key id %s is in another file too", source.path, key.id)
        self._keys = merged
