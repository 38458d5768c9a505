"""Fairness of the queue: shares at saturation, turns of keys, who gives way when it is full."""

from __future__ import annotations

from collections import Counter

import pytest
from llm_gateway.fair_queue import MIN_SHARE, FairQueue, shares


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"a": 1}, {"a": 1}),
        ({"a": 1, "b": 1}, {"a": 0.5, "b": 0.5}),
        ({"a": 1, "b": 3}, {"a": 0.25, "b": 0.75}),
        ({"a": 1, "b": 999}, {"a": 0.05, "b": 0.95}),
        ({"a": 1, "b": 1, "c": 998}, {"a": 0.05, "b": 0.05, "c": 0.9}),
        # Raising the one below the floor must not push the next one under it.
        ({"a": 0.1, "b": 5.1, "c": 94.8}, {"a": 0.05, "b": 0.05, "c": 0.9}),
    ],
)
def test_shares(weights: dict[str, float], expected: dict[str, float]) -> None:
    assert shares(weights) == pytest.approx(expected, abs=0.003)
    assert sum(shares(weights).values()) == pytest.approx(1)


def test_many_tiers_share_alike() -> None:
    weights = {str(number): 1.0 + number for number in range(30)}
    assert set(shares(weights).values()) == {1 / 30}


def test_at_saturation_each_tier_gets_its_share_and_the_lowest_at_least_five_percent() -> None:
    weights = {"low": 1.0, "middle": 20.0, "high": 79.0}
    queue: FairQueue[str] = FairQueue(weights, 1000)
    gone: Counter[str] = Counter()
    for name in weights:
        for _ in range(50):
            queue.push(name, "key", name)
    for _ in range(2000):
        popped = queue.pop()
        assert popped is not None
        gone[popped] += 1
        queue.push(popped, "key", popped)  # always somebody waiting in every tier
    expected = shares(weights)
    for name in weights:
        assert gone[name] / 2000 == pytest.approx(expected[name], abs=0.002)
    assert gone["low"] / 2000 >= MIN_SHARE - 0.002


def test_a_tier_that_was_idle_cannot_save_up_turns() -> None:
    queue: FairQueue[str] = FairQueue({"a": 1.0, "b": 1.0}, 1000)
    for _ in range(100):
        queue.push("a", "key", "a")
        queue.pop()
    for name in ("a", "b"):
        for _ in range(20):
            queue.push(name, "key", name)
    first = Counter(queue.pop() for _ in range(20))
    assert abs(first["a"] - first["b"]) <= 2


def test_keys_of_a_tier_take_turns() -> None:
    queue: FairQueue[str] = FairQueue({"a": 1.0}, 1000)
    for number in range(5):
        queue.push("a", "greedy", f"g{number}")
    queue.push("a", "modest", "m0")
    queue.push("a", "modest", "m1")
    assert [queue.pop() for _ in range(7)] == ["g0", "m0", "g1", "m1", "g2", "g3", "g4"]
    assert queue.pop() is None


@pytest.mark.parametrize(
    ("waiting", "newcomer", "placed", "dropped"),
    [
        # Not full.
        ([("low", "k", 9)], ("low", "k"), True, None),
        # Full of the same: the newcomer is refused.
        ([("low", "k", 10)], ("low", "k"), False, None),
        ([("high", "k", 10)], ("high", "k"), False, None),
        # A higher tier takes the place of the lowest, newest first.
        ([("low", "k", 10)], ("high", "k"), True, "low-k-9"),
        ([("low", "k", 5), ("middle", "k", 5)], ("high", "k"), True, "low-k-4"),
        # But not below its reserve of one.
        ([("low", "k", 1), ("high", "k", 9)], ("high", "k"), False, None),
        ([("low", "k", 1), ("middle", "k", 9)], ("high", "k"), True, "middle-k-8"),
        # A tier that has nothing waiting gets its reserve from whoever has more than theirs.
        ([("high", "k", 10)], ("low", "k"), True, "high-k-9"),
        # One key does not keep the others of its tier out.
        ([("low", "greedy", 10)], ("low", "modest"), True, "low-greedy-9"),
        ([("low", "one", 5), ("low", "two", 5)], ("low", "one"), False, None),
    ],
)
def test_a_full_queue(
    waiting: list[tuple[str, str, int]],
    newcomer: tuple[str, str],
    placed: bool,
    dropped: str | None,
) -> None:
    queue: FairQueue[str] = FairQueue({"low": 1.0, "middle": 10.0, "high": 100.0}, 10)
    for tier, key, count in waiting:
        for number in range(count):
            assert queue.push(tier, key, f"{tier}-{key}-{number}") == (True, None)
    before = len(queue)
    assert queue.push(*newcomer, "new") == (placed, dropped)
    assert len(queue) == before + (placed and dropped is None)
    assert ("new" in set(queue.drain())) == placed
    assert len(queue) == 0


def test_none_wait_in_a_queue_without_places() -> None:
    queue: FairQueue[str] = FairQueue({"a": 1.0, "b": 2.0}, 0)
    assert queue.push("b", "k", "x") == (False, None)


def test_who_leaves_is_gone_once() -> None:
    queue: FairQueue[str] = FairQueue({"a": 1.0}, 10)
    queue.push("a", "k", "x")
    queue.push("a", "k", "y")
    assert queue.remove("a", "k", "x")
    assert not queue.remove("a", "k", "x")
    assert not queue.remove("a", "other", "y")
    assert list(queue.drain()) == ["y"]
