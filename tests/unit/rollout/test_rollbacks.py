"""Which host goes back to which release."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.rollout.rollback import Target, commands, in_words, listed, targets

# The order in which releases came to every host.
AGES = ("older", "old1", "same1", "same2", "mid1", "new1", "bad1", "bad2")


def kept(current: str | None, previous: str | None = None, *more: str) -> dict[str, Any]:
    names = [name for name in (current, previous, *more) if name]
    return {
        "current": current, "previous": previous,
        "releases": {
            name: {"vllm": "0.33.0", "staged": AGES.index(name) if name in AGES else None}
            for name in names
        },
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


def test_settings_that_were_reverted_take_no_good_host_further_back() -> None:
    """What the settings ask for is the old one by now, and c runs it."""
    fleet = {"a": kept("bad1", "old1"), "b": kept("bad1", "old1"), "c": kept("old1", "older")}
    back = Target("old1", ("bad1",), "bad1", switch=True)
    assert targets(fleet, dict.fromkeys(fleet, "old1")) == {
        "a": back, "b": back, "c": Target("old1", ("bad1",), "old1", switch=False),
    }  # fmt: skip


def test_releases_that_are_not_the_same_on_all_hosts_are_gone_back_from_alike() -> None:
    """As where hosts have different interpreters: each its own ID. c's is one that it runs and that
    its settings ask for, and good; on b the new one has never been."""
    fleet = {"a": kept("bad1", "old1"), "c": kept("same2", "same1"), "b": kept("older", "x")}
    found = targets(fleet, {"a": "old1", "c": "same2", "b": "its-new"})
    assert isinstance(found, dict)
    assert {host: one.switch for host, one in found.items()} == {"a": True, "c": False, "b": False}
    half = targets(fleet, {"a": "bad1", "c": "its-new", "b": "another"})
    assert isinstance(half, dict)
    assert {host: one.switch for host, one in half.items()} == {"a": True, "c": False, "b": False}
    assert half["c"] == Target("same2", ("its-new",), "same2", switch=False)


@pytest.mark.parametrize(
    ("current", "wanted", "kept_at"),
    [("new1", "new1", "old1"), ("bad1", "old1", "old1"), ("old1", "new1", None)],
)
def test_a_host_whose_plan_is_refused_goes_as_those_that_run_the_same(
    current: str, wanted: str, kept_at: str | None
) -> None:
    fleet = {
        "a": kept(current, "old1" if current != "old1" else "older"),
        "d": kept(current, "old1" if current != "old1" else "older"),
        "b": kept("new1", "old1") if wanted == "new1" else kept("old1", "older"),
    }
    found = targets(fleet, {"a": wanted, "b": wanted})
    assert isinstance(found, dict)
    assert found["d"] == found["a"]
    assert found["d"].kept == (kept_at or current)


def test_a_host_whose_plan_is_refused_goes_by_what_can_be_compared() -> None:
    found = targets({"a": kept("new1", "old1"), "d": kept("old1", "older")}, {"a": "new1"})
    assert isinstance(found, dict)
    assert found["d"] == Target("old1", ("new1",), "old1", switch=False)
    found = targets(HALF, {})  # no plan at all: the newest that runs
    assert isinstance(found, dict)
    assert [one.kept for one in found.values()] == ["old1"] * 3


def test_a_host_that_runs_nothing_is_not_in_it() -> None:
    found = targets({**HALF, "e": kept(None)}, {**WANTED, "e": "new1"})
    assert isinstance(found, dict)
    assert set(found) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("fleet", "wanted", "said"),
    [
        # Of d nothing is known: neither its plan, nor what it runs elsewhere.
        ({**HALF, "d": kept("x", "y")}, WANTED, "on d (--exclude d) cannot be told"),
        # Taken back already, by a rollback or a deploy of reverted settings.
        (
            {"a": kept("old1", "bad1"), "c": kept("old1", "older")},
            {"a": "old1", "c": "old1"},
            "a has been taken back already",
        ),
        # Two after the one that the settings ask for.
        (
            {"a": kept("bad2", "bad1"), "b": kept("bad1", "old1", "bad2")},
            {"a": "old1", "b": "old1"},
            "a, b run bad1, bad2, which came one after the other",
        ),
        # The times are not known.
        ({"a": kept("x", "y")}, {"a": "y"}, "came later cannot be told"),
        # No host has the one that is asked for: who knows whether it came before or after.
        ({"a": kept("old1", "older")}, {"a": "new1"}, "no host runs the release"),
    ],
)
def test_what_cannot_be_told_is_refused(fleet: Any, wanted: Any, said: str) -> None:
    found = targets(fleet, wanted)
    assert isinstance(found, str)
    assert said in found


def test_what_to_type_then() -> None:
    fleet = {**HALF, "d": kept("x"), "e": kept(None)}
    assert list(commands(fleet, "prod")) == [
        "fleet rollback prod old1 --only a,b", "fleet rollback prod older --only c",
    ]  # fmt: skip


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
