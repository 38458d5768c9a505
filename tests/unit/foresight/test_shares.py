"""Work shared out over processes gives what it gives in one, in the same order."""

from __future__ import annotations

import os
import signal

import pytest

from pyinfra_deploy import shares

MANY = range(4 * shares.LEAST_IN_A_SHARE + 3)


@pytest.fixture(autouse=True)
def _four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})


def processes(items: range) -> set[int]:
    return set(shares.in_shares(lambda _item: os.getpid(), items))


def test_the_same_in_the_same_order() -> None:
    assert shares.in_shares(lambda item: item * 2, MANY) == [item * 2 for item in MANY]
    assert shares.in_shares(lambda item: item, []) == []


def test_few_things_stay_in_this_process() -> None:
    assert processes(range(shares.LEAST_IN_A_SHARE)) == {os.getpid()}
    assert len(processes(MANY)) == 4


def test_what_raises_elsewhere_raises_here() -> None:
    def work(item: int) -> int:
        if item == 101:
            raise ValueError(f"item {item}")
        return item

    with pytest.raises(ValueError, match="item 101"):
        shares.in_shares(work, MANY)


def test_what_a_killed_process_owed_is_done_here() -> None:
    here = os.getpid()

    def work(item: int) -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    assert shares.in_shares(work, MANY) == list(MANY)
