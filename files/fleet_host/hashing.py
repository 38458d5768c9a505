"""SHA-256 of many files at the speed of the cores or of the disk, in little memory.

hashlib releases the GIL for each buffer, so threads over files use all cores. A buffer of 1 MiB:
1.0-1.4 GB per core-second, while larger ones fall out of the cache and are slower, and Debian 12's
sha256sum does 0.2 (measured, one Zen 3 core). One file is one thread's work: SHA-256 has no parts.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BUFFER_BYTES = 1024 * 1024
# Asked of the kernel ahead of the hash, so that disk and core work at the same time: its own
# read-ahead is 128 KiB (queue/read_ahead_kb), a tenth of a buffer.
AHEAD_BYTES = 8 * BUFFER_BYTES
# Buffers of that many threads are 64 MiB. Each needs the GIL for some 5 us of a buffer's 800.
MOST_THREADS = 64
REPORT_SECONDS = 0.25

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Cancelled(Exception):
    """Hashing was given up because its caller stops."""


class Tally:
    """Bytes that one thread has hashed so far; others only read it."""

    def __init__(self) -> None:
        self.count = 0
        self.cancelled = False


def sha256_of(path: Path, tally: Tally | None = None, *, from_disk: bool = False) -> str:
    """SHA-256 of a file in hex. Cancelled when the tally says so. OSError.

    from_disk: what the page cache has of it is given up first, else a disk that has lost bits would
    not be asked (pages that a process has mapped stay, posix_fadvise(2)).
    """
    tally = tally or Tally()
    digest = hashlib.sha256()
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if from_disk:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        done = asked = 0
        while count := os.readv(descriptor, [buffer]):
            if done + AHEAD_BYTES // 2 >= asked:
                asked = done + AHEAD_BYTES
                os.posix_fadvise(descriptor, done, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
            digest.update(buffer if count == BUFFER_BYTES else view[:count])
            done += count
            tally.count = done
            if tally.cancelled:
                raise Cancelled
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def thread_count() -> int:
    """One for each core that this process may use (CPUAffinity=, taskset)."""
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0))))


def in_threads(
    items: list[Item],
    work: Callable[[Item, Tally], Outcome],
    done_with: Callable[[Outcome], None],
    report: Callable[[int], None] | None = None,
) -> None:
    """work(item, tally) of each item in threads, begun in the order given.

    In the caller's thread: done_with(outcome) of each as it comes, report(bytes so far) four times
    a second. Interrupted by any exception, a SIGTERM's too, the threads stop within a buffer.
    """
    tallies = [Tally() for _ in items]

    def one(item: Item, tally: Tally) -> Outcome:
        if tally.cancelled:
            raise Cancelled
        return work(item, tally)

    with ThreadPoolExecutor(thread_count()) as pool:
        waiting = {pool.submit(one, *pair) for pair in zip(items, tallies, strict=True)}
        try:
            while waiting:
                done, waiting = wait(waiting, REPORT_SECONDS, FIRST_COMPLETED)
                if report is not None:
                    report(sum(tally.count for tally in tallies))
                for future in done:
                    done_with(future.result())
        except BaseException:
            for tally in tallies:
                tally.cancelled = True
            raise
