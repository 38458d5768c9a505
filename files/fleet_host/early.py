"""Verifying files as soon as the hub's client has brought them, while it goes on with the next: the
other hosts of a fan-out wait for them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from . import hashing, integrity

if TYPE_CHECKING:
    from pathlib import Path

    from .listing import FileEntry
    from .staging import Memory

# The client hashes too, and a hub is rarely as fast as one core hashes.
THREADS = 2


class EarlyVerification:
    """Used by the pull's own thread; the hashing is done in others. A file that is wrong is left
    alone: the client may be about to bring it again, and what it leaves is verified at its end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pool = ThreadPoolExecutor(THREADS)
        self._verifying: dict[Future[integrity.Verdict], tuple[FileEntry, hashing.Tally]] = {}
        self._tried: set[tuple[str, integrity.Stat]] = set()

    def look(self, memory: Memory, fetched: list[FileEntry]) -> list[FileEntry]:
        """Start and finish verifications of what the client has brought so far; what it has not."""
        self._note(memory, [future for future in self._verifying if future.done()])
        checked = {entry.path for entry, _ in self._verifying.values()}
        absent = []
        for entry in fetched:
            if entry.path in memory.good or entry.path in checked:
                continue
            stat = integrity.stat_of(self._directory / entry.path)
            if stat is None or stat.size_bytes != entry.size_bytes:
                absent.append(entry)
            elif (entry.path, stat) not in self._tried:
                self._tried.add((entry.path, stat))
                tally = hashing.Tally()
                future = self._pool.submit(
                    integrity.verify_file, self._directory, entry, sync=True, tally=tally
                )
                self._verifying[future] = (entry, tally)
        return absent

    def _note(self, memory: Memory, futures: list[Future[integrity.Verdict]]) -> None:
        for future in futures:
            del self._verifying[future]
            verdict = integrity.with_header(self._directory, future.result())
            if verdict.problem is None:
                memory.add(verdict)

    def wait(self, memory: Memory) -> None:
        """For what is being verified."""
        self._note(memory, list(self._verifying))

    def close(self) -> None:
        for _, tally in self._verifying.values():
            tally.cancelled = True
        self._pool.shutdown(wait=True)
