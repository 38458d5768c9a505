"""Faults as data: what is refused, and the command line's way to write them."""

from __future__ import annotations

from typing import Any

import pytest

from lab.errors import LabError
from lab.hub.__main__ import parse_fault
from lab.hub.faults import KINDS, Fault, FaultBoard


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "corupt"}, "no fault is called 'corupt'"),
        ({"kind": "slow"}, "fault slow needs value, int"),
        ({"kind": "extra", "value": 5}, "fault extra needs value, str"),
        ({"kind": "drop", "times": 0}, "times is 0"),
    ],
)
def test_wrong_faults_say_what_is_wrong(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fault(**given)


def test_the_first_fault_that_is_left_applies() -> None:
    board = FaultBoard()
    once, always = Fault("error", path="a*", times=1), Fault("error", value=404)
    board.replace([once, always])
    assert [board.take("error", "m/n", "abc") for _ in range(3)] == [once, always, always]
    assert board.take("error", "m/n", "xyz") == always
    assert board.take("drop", "m/n", "abc") is None
    assert [fault["left"] for fault in board.faults()] == [0, None]


def test_a_fault_of_one_model() -> None:
    board = FaultBoard()
    board.replace([Fault("omit", model="lab/a"), Fault("no_sha256", model="lab/*")])
    assert [fault.kind for fault in board.listing_faults("lab/a")] == ["omit", "no_sha256"]
    assert [fault.kind for fault in board.listing_faults("lab/b")] == ["no_sha256"]


def test_fault_from_words() -> None:
    assert parse_fault(["slow", "path=*.json", "times=2", "value=1000"]) == Fault(
        "slow", path="*.json", times=2, value=1000
    )
    assert parse_fault(["token", "value=12345"]) == Fault("token", value="12345")


@pytest.mark.parametrize("words", [["slow", "1000"], ["slow", "speed=1"], ["boom"], ["slow"]])
def test_wrong_words_name_the_next_move(words: list[str]) -> None:
    with pytest.raises(LabError) as caught:
        parse_fault(words)
    assert caught.value.fix


def test_every_kind_is_explained() -> None:
    assert all(meaning.strip() for meaning in KINDS.values())
