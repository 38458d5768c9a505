"""Peers that give wrong bytes or go away: named, left out, and what they gave thrown away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.model_hub import FIRST, SECOND
from tests.fakes.rogue_peer import Rogue
from tests.fakes.sharing_hosts import NO_HUB, all_pull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fakes.sharing_hosts import SharingHosts


@pytest.fixture
def rogue(sharing_hosts: SharingHosts) -> Iterator[Callable[[str], Rogue]]:
    """In the place of the first host."""
    made: list[Rogue] = []

    def start(mode: str) -> Rogue:
        place = sharing_hosts.hosts[0].peer
        made.append(Rogue(sharing_hosts.hub, mode, place.address, place.port))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.stop()


def test_a_peer_that_gives_wrong_bytes_is_named_and_dropped(
    sharing_hosts: SharingHosts, rogue: Callable[[str], Rogue]
) -> None:
    found = rogue("wrong")
    answer = all_pull(sharing_hosts.hosts[1:2])[0]
    assert sharing_hosts.hosts[1].has_all()
    assert list(answer["peers"]["dropped"]) == ["gpu01"]
    assert "wrong bytes for" in answer["peers"]["dropped"]["gpu01"]
    assert "peer gpu01 (127.0.0.11 port" in answer["log"]
    assert answer["peers"]["from"] == {}
    # Two at a time were under way; nothing more was asked of it.
    assert len(found.asked) <= 2
    assert set(sharing_hosts.downloads().values()) == {1}


def test_what_a_wrong_peer_gave_is_taken_from_a_good_one(
    sharing_hosts: SharingHosts, rogue: Callable[[str], Rogue]
) -> None:
    rogue("wrong")
    good, last = sharing_hosts.hosts[1:]
    good.publish()
    good.open(pulling=False)
    last.open()
    answer = last.pull(endpoint=NO_HUB).result()
    assert last.has_all()
    assert list(answer["peers"]["from"]) == ["gpu02"]


@pytest.mark.parametrize("mode", ["cut", "hang", "strange", "nested", "drip", "trickle"])
def test_a_peer_that_goes_away_in_the_middle_is_no_end(
    sharing_hosts: SharingHosts, rogue: Callable[[str], Rogue], mode: str
) -> None:
    rogue(mode)
    answer = all_pull(sharing_hosts.hosts[1:2], files_at_once=1)[0]
    assert sharing_hosts.hosts[1].has_all()
    said = {
        "cut": "closed the connection in the middle",
        "hang": "does not answer in the middle",
        "strange": "another version of this program",
        "nested": "its answer cannot be read",
        "drip": "it does not answer",
        "trickle": "does not answer in the middle",
    }
    assert said[mode] in answer["log"]


def test_bytes_of_several_peers_that_are_wrong_blame_nobody(sharing_hosts: SharingHosts) -> None:
    """The beginning of the file is of an earlier run; who gave it is not known."""
    giver, taker, _ = sharing_hosts.hosts
    giver.publish()
    giver.open(pulling=False)
    taker.open()
    taker.staged.mkdir(parents=True)
    (taker.staged / f"{FIRST}.incomplete").write_bytes(b"\0" * 1000)
    (taker.staged / f"{SECOND}.incomplete").write_bytes(b"\0" * 900_000)  # longer than the file
    answer = taker.pull(endpoint=NO_HUB).result()
    assert taker.has_all()
    assert answer["peers"]["dropped"] == {}
    assert "pieced together" in answer["log"]
