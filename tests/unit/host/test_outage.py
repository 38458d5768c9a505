"""How long a pull waits for a hub that sends nothing, on a clock of the test's own."""

from __future__ import annotations

import pytest
from fleet_host import outage
from fleet_host.errors import HostError
from fleet_host.outage import Outage
from fleet_host.status import Progress

ERROR = HostError("the download failed", "exit code 1.", "Start again.", ["last line"])


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(outage, "time", made)
    return made


def give_up(waiting: Outage, clock: Clock, run_seconds: float = 30.0) -> HostError:
    for _ in range(1000):
        clock.now += run_seconds
        try:
            waiting.wait(ERROR, Progress(None))
        except HostError as error:
            return error
    raise AssertionError("it never gave up")


def test_the_pauses_grow_and_end_when_patience_does(clock: Clock) -> None:
    error = give_up(Outage(900), clock)
    assert clock.slept[:5] == [10, 20, 40, 80, 120]
    assert clock.now - 1000 >= 900
    assert sum(clock.slept) < 900
    assert error.what == ERROR.what
    assert "No new byte came for" in error.why
    assert error.detail == ["last line"]


def test_whoever_waits_sees_why_in_journal_and_status(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    progress, waiting = Progress(None), Outage(900)
    clock.now += 35
    waiting.wait(ERROR, progress)
    line = "exit code 1. No new byte for 35 s (given up after 900 s): the client is run again in 10"
    assert progress.as_dict()["phase"] == "waiting"
    assert line in progress.as_dict()["message"]
    assert line in capsys.readouterr().err


def test_a_new_byte_begins_the_count_anew_from_when_it_came(clock: Clock) -> None:
    waiting = Outage(300)
    for _ in range(20):
        clock.now += 200
        waiting.bytes_came(seconds_ago=10)
        waiting.wait(ERROR, Progress(None))
    assert set(clock.slept) == {10}
    last = clock.now - 20
    give_up(waiting, clock)
    assert 300 <= clock.now - last < 340


def test_a_pause_ends_when_a_peer_has_what_is_missing(clock: Clock) -> None:
    waiting = Outage(900)
    waiting.wait(ERROR, Progress(None), lambda: len(clock.slept) == 3)
    assert clock.slept == [1, 1, 1]
