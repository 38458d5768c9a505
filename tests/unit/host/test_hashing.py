"""Hashing in threads: right, counted, stopped, and from the disk."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
from fleet_host import hashing

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("from_disk", [False, True])
@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 9 << 20])
def test_the_digest_is_that_of_the_content(tmp_path: Path, size: int, from_disk: bool) -> None:
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    tally = hashing.Tally()
    found = hashing.sha256_of(tmp_path / "a", tally, from_disk=from_disk)
    assert found == hashlib.sha256(content).hexdigest()
    assert tally.count == size


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic link"):
        hashing.sha256_of(tmp_path / "b")


def test_outcomes_come_in_the_caller_s_thread_and_the_count_is_the_sum() -> None:
    done: list[int] = []
    reports: list[int] = []
    threads = set()

    def work(item: int, tally: hashing.Tally) -> int:
        tally.count = item
        return item * 2

    def done_with(outcome: int) -> None:
        threads.add(threading.current_thread())
        done.append(outcome)

    hashing.in_threads([1, 2, 3], work, done_with, reports.append)
    assert sorted(done) == [2, 4, 6]
    assert threads == {threading.main_thread()}
    assert reports[-1] == 6


def test_an_exception_in_the_caller_stops_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "thread_count", lambda: 2)
    stopped: list[int] = []
    begun: list[int] = []

    def work(item: int, tally: hashing.Tally) -> int:
        begun.append(item)
        if item == 0:
            return 0
        while not tally.cancelled:
            time.sleep(0.001)
        stopped.append(item)
        raise hashing.Cancelled

    def done_with(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hashing.in_threads(list(range(50)), work, done_with)
    # In the end nobody works any more, and most were never begun.
    assert sorted(stopped) == sorted(item for item in begun if item)
    assert len(begun) < 10


def test_a_failing_item_is_the_caller_s_failure() -> None:
    def work(item: int, _: hashing.Tally) -> int:
        raise ValueError(item)

    with pytest.raises(ValueError, match="7"):
        hashing.in_threads([7], work, print)


def test_there_is_a_thread_for_each_core_that_may_be_used() -> None:
    assert hashing.thread_count() == min(64, len(os.sched_getaffinity(0)))
