"""Whose turn it is at the hub, and which peers are left alone."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import share_state, sharing
from fleet_host import swarm as swarm_module
from fleet_host.listing import FileEntry
from fleet_host.peer_watch import GONE_SECONDS, PeerWatch, Seen
from fleet_host.sharing import Peer
from fleet_host.status import Progress
from fleet_host.swarm import Swarm

if TYPE_CHECKING:
    from pathlib import Path

A, B = FileEntry("a", 1, "a" * 64), FileEntry("b", 1, "b" * 64)
MISSING = [A, B]
MODEL = "Qwen--Tiny/master-123456789abc"


def seen(rank: int, **known: Any) -> Seen:
    peer = Peer(f"gpu{rank:02d}", rank, "192.0.2.1", 8472)
    return Seen(peer, ever=True, asked=True, answered_at=time.monotonic(), **known)


def swarm_of(tmp_path: Path, *others: Seen, rank: int = 1) -> tuple[Any, list[str]]:
    """A swarm whose watch has seen these, and the names that it is told to leave alone."""
    left: list[str] = []
    wanted: Any = SimpleNamespace(client=SimpleNamespace(stall_timeout_seconds=900))
    made: Any = Swarm(wanted, SimpleNamespace(model=tmp_path))  # type: ignore[arg-type]
    made._watcher = SimpleNamespace(
        rank=rank,
        all=lambda: list(others),
        answering=lambda: [one for one in others if one.answers],
        asked_all=lambda: all(one.asked for one in others),
        leave_alone=lambda name, *_: left.append(name),
    )
    return made, left


@pytest.mark.parametrize(
    ("others", "turn"),
    [
        ([], MISSING),
        ([seen(0, pulling=True)], []),
        ([seen(0)], MISSING),
        ([seen(2, pulling=True)], MISSING),
        ([seen(2, pulling=True, starting=True)], []),
        ([seen(2, files={A.sha256})], [B]),
        ([seen(2, coming={B.sha256}, pulling=True)], [A]),
        ([seen(2, files={A.sha256}, coming={B.sha256})], []),
        ([seen(0, pulling=True), seen(2, hub_failed="500")], []),
        ([seen(0, pulling=True, hub_failed="500")], MISSING),
        ([seen(0, pulling=True), seen(2, hub_failed="500"), seen(3, hub_failed="x")], MISSING),
        ([seen(0, pulling=True, problem="gone", files={A.sha256})], []),
    ],
)
def test_the_first_that_pulls_brings_what_nobody_has(
    tmp_path: Path, others: list[Seen], turn: list[FileEntry]
) -> None:
    for one in others:
        one.answered_at = time.monotonic()  # the cases were made when the tests were collected
    made, left = swarm_of(tmp_path, *others)
    assert made._turn(MISSING, 0.0, Progress(None)) == turn
    assert left == []


def test_nobody_goes_to_the_hub_before_all_were_asked(tmp_path: Path) -> None:
    made, _ = swarm_of(tmp_path, Seen(Peer("gpu02", 2, "192.0.2.2", 8472)))
    assert made._turn(MISSING, 0.0, Progress(None)) == []


def test_a_peer_whose_answer_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    made, left = swarm_of(tmp_path, Seen(Peer("gpu02", 2, "192.0.2.2", 8472)), seen(0))
    assert made._turn(MISSING, 961.0, Progress(None)) == MISSING
    assert left == ["gpu00"]


def test_one_lost_answer_is_no_death_and_silence_is(tmp_path: Path) -> None:
    first = seen(0, pulling=True, problem="it does not answer")
    made, _ = swarm_of(tmp_path, first)
    assert made._turn(MISSING, 0.0, Progress(None)) == []
    first.answered_at -= GONE_SECONDS + 1
    assert made._turn(MISSING, 0.0, Progress(None)) == MISSING


def test_peers_that_have_all_and_give_nothing_are_left(tmp_path: Path) -> None:
    made, left = swarm_of(tmp_path, seen(0, pulling=True), seen(2, files={A.sha256}))
    # Others look at the hub for as long as this host does: the first of them goes on.
    assert made._turn(MISSING, 959.0, Progress(None)) == []
    assert left == []
    assert made._turn(MISSING, 961.0, Progress(None)) == MISSING
    assert left == ["gpu00", "gpu02"]
    assert set(made.as_result()["dropped"]) == {"gpu00", "gpu02"}


def test_a_peer_that_gave_nothing_gets_another_chance_each_time_later(tmp_path: Path) -> None:
    made, _ = swarm_of(tmp_path, seen(0, pulling=True))
    pauses: list[float] = []
    made._watch.leave_alone = lambda _, seconds: pauses.append(seconds)
    for _ in range(3):
        made._turn(MISSING, 961.0, Progress(None))
    assert pauses == [swarm_module.LEFT_SECONDS * factor for factor in (1, 2, 4)]


def test_a_peer_that_hashes_what_was_copied_to_it_gets_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files and bytes stay the same until the first file is done."""
    monkeypatch.setenv("FLEET_RUN_ROOT", str(tmp_path))
    share_state.state_path(MODEL).parent.mkdir(parents=True)
    progress = Progress(None)
    hashing = PeerWatch(sharing.alone(MODEL), ["c" * 64], progress.hashed_bytes)
    other = PeerWatch(sharing.alone(MODEL))
    try:
        known = other._seen.setdefault("gpu00", seen(0, next_at=math.inf))

        def movement() -> object:
            hashing.say(5)
            hashing._write()
            known.hashed = share_state.read(MODEL, opened_at=0.0, expected=True)["hashed"]
            return other.movement()

        progress.phase("verify", total=10, unit="bytes")
        before = movement()
        assert movement() == before
        progress.advance(3)
        after = movement()
        assert after != before
        # Another phase is no hashing, and what was hashed stays.
        progress.phase("peers", total=10, unit="bytes")
        progress.advance(7)
        assert movement() == after
    finally:
        hashing.end()
        other.end()


def test_another_host_at_the_hub_has_the_time_that_the_one_before_had() -> None:
    watch = PeerWatch(sharing.alone(MODEL))
    try:
        first, second = seen(0, next_at=math.inf), seen(1, next_at=math.inf)  # never asked
        watch._seen |= {"a": first, "b": second}
        first.hub = True
        before = watch.movement()
        assert watch.movement() == before
        first.hub, second.hub = False, True
        assert watch.movement() != before
    finally:
        watch.end()


def test_transfers_that_break_off_together_are_one_failure(tmp_path: Path) -> None:
    made, left = swarm_of(tmp_path)
    for _ in range(8):
        made._failed("gpu02")
    assert left == []
    for _ in range(swarm_module.MOST_FAILURES - 1):
        made._busy_until["gpu02"] = 0.0
        made._failed("gpu02")
    assert left == ["gpu02"]
