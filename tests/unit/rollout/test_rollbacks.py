"""Which host goes back to which release."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.rollout.rollback import Target, in_words, listed, targets


def kept(current: str | None, previous: str | None = None, *more: str) -> dict[str, Any]:
    names = [name for name in (current, previous, *more) if name]
    return {
        "current": current, "previous": previous,
        "releases": {name: {"vllm": "0.33.0"} for name in names},
    }  # fmt: skip


# Half rolled out: two of three run the new one.
HALF = {"a": kept("new1", "old1"), "b": kept("new1", "old1"), "c": kept("old1", "older")}
WANTED: dict[str, str | None] = dict.fromkeys(HALF, "new1")


def test_to_the_one_before_on_a_fleet_half_rolled_out() -> None:
    """The host that never had it stays, and is held: the next deploy would bring it there."""
    back = Target("old1", ("new1",), "new1", switch=True)
    assert targets(HALF, WANTED) == {
        "a": back, "b": back, "c": Target("old1", ("new1",), "old1", switch=False),
    }  # fmt: skip


def test_to_the_one_before_that_by_name() -> None:
    fleet = {name: kept(host["current"], host["previous"], "older") for name, host in HALF.items()}
    found = targets(fleet, WANTED, "olde")
    assert isinstance(found, dict)
    assert found["a"] == Target("older", ("new1",), "new1", switch=True)
    assert found["c"] == Target("older", ("new1", "old1"), "old1", switch=True)


def test_hosts_whose_release_is_not_known_are_left_out() -> None:
    found = targets({**HALF, "d": kept("x"), "e": kept(None)}, {**WANTED, "e": "new1"})
    assert isinstance(found, dict)
    assert set(found) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("fleet", "release", "said"),
    [
        ({"a": kept("new1")}, "", "a has kept no release before"),
        ({"a": kept("new1", "new1")}, "", "a has kept no release before"),
        ({"a": kept("old1", "new1")}, "", "no host runs the release that the settings ask for"),
        ({"a": kept("old1", "new1")}, "old", "too short for a release"),
        ({"a": kept("same1", "same2")}, "same", "is the beginning of same1, same2"),
        ({"a": kept("new1")}, "gone", "no host has kept a release 'gone'"),
        (HALF, "older", "a, b has not kept older (--exclude a,b)"),
    ],
)
def test_what_cannot_be_gone_back_to(fleet: Any, release: str, said: str) -> None:
    found = targets(fleet, dict.fromkeys(fleet, "new1"), release)
    assert isinstance(found, str)
    assert said in found


def test_a_host_that_runs_it_is_only_held() -> None:
    found = targets({"a": kept("old1", "new1")}, {"a": "new1"}, "old1")
    assert found == {"a": Target("old1", ("new1",), "old1", switch=False)}


def test_in_words() -> None:
    found = targets(HALF, WANTED)
    assert isinstance(found, dict)
    assert in_words(found["a"], HALF["a"]) == (
        "new1 -> old1 (vLLM 0.33.0); held there, new1 does not come back by a deploy"
    )
    assert in_words(found["c"], HALF["c"]).startswith("stays at old1 (vLLM 0.33.0)")
    assert list(listed({"a": kept("new1", "old1"), "b": kept(None)})) == [
        "a: new1 (live), old1 (the one before)",
        "b: none",
    ]
