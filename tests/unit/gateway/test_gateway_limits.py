"""Token buckets and the circuit breaker, on a clock of the test's."""

from __future__ import annotations

import pytest
from llm_gateway.breaker import Breaker
from llm_gateway.keys import Key
from llm_gateway.limits import Bucket, KeyLimits
from llm_gateway.refusals import Refusal


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def key(requests: int | None = None, tokens: int | None = None, name: str = "a") -> Key:
    return Key(name, name, b"", None, requests_per_minute=requests, tokens_per_minute=tokens)


@pytest.mark.parametrize(
    ("per_minute", "taken", "after_seconds", "amount", "wait_seconds"),
    [
        (60, 0, 0, 1, 0),
        (60, 60, 0, 1, 1),
        (60, 60, 0.5, 1, 0.5),
        (60, 60, 1, 1, 0),
        (60, 60, 3600, 60, 0),
        (60, 60, 3600, 61, 1),  # never more than a minute's worth
        (1, 1, 30, 1, 30),
        (600, 700, 0, 1, 10.1),  # in debt
        (600, 700, 10, 0, 0),
    ],
)
def test_buckets(
    per_minute: int, taken: float, after_seconds: float, amount: float, wait_seconds: float
) -> None:
    bucket = Bucket.full(per_minute, 5.0)
    bucket.take(taken)
    assert bucket.wait_seconds(amount, 5.0 + after_seconds) == pytest.approx(wait_seconds)


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = Bucket.full(60, 5.0)
    bucket.take(60)
    assert bucket.wait_seconds(1, 4.0) == pytest.approx(1)
    assert bucket.wait_seconds(1, 5.0) == pytest.approx(1)


def test_requests_of_a_key_are_counted_and_other_keys_are_not_touched() -> None:
    clock = Clock()
    limits = KeyLimits(clock)
    for _ in range(3):
        limits.request(key(3))
    with pytest.raises(Refusal) as refused:
        limits.request(key(3))
    assert refused.value.status == 429
    assert refused.value.retry_after_seconds == pytest.approx(20)
    limits.request(key(3, name="b"))
    limits.request(key(name="c"))
    clock.now += 20
    limits.request(key(3))
    with pytest.raises(Refusal):
        limits.request(key(3))


def test_a_changed_limit_is_in_force_at_once_and_forgotten_keys_begin_anew() -> None:
    limits = KeyLimits(Clock())
    limits.request(key(1))
    with pytest.raises(Refusal):
        limits.request(key(1))
    limits.request(key(2))
    limits.request(key(2))
    with pytest.raises(Refusal):
        limits.request(key(2))
    limits.forget(["b"])
    limits.request(key(2))


def test_generated_tokens_are_waited_out_by_the_next_request() -> None:
    clock = Clock()
    limits = KeyLimits(clock)
    one = key(tokens=600)
    limits.prompt(one, 500)
    limits.generated(one, 400)  # 300 in debt
    with pytest.raises(Refusal) as refused:
        limits.request(one)
    assert (refused.value.status, refused.value.type) == (429, "tokens")
    assert refused.value.retry_after_seconds == pytest.approx(30.1)
    clock.now += 31
    limits.request(one)
    with pytest.raises(Refusal) as refused:
        limits.prompt(one, 100)
    assert refused.value.retry_after_seconds == pytest.approx(9)


def test_a_prompt_that_never_fits_is_told_so() -> None:
    with pytest.raises(Refusal) as refused:
        KeyLimits(Clock()).prompt(key(tokens=100), 101)
    assert refused.value.status == 413
    assert refused.value.retry_after_seconds is None


def breaker(clock: Clock) -> Breaker:
    return Breaker(3, 5.0, 20.0, clock, jitter=lambda: 1.0)


def test_only_failures_in_a_row_open_the_breaker() -> None:
    one = breaker(Clock())
    for _ in range(10):
        one.failed()
        one.failed()
        one.succeeded()
    assert one.state() == "closed"
    for _ in range(3):
        one.failed()
    assert one.state() == "open"


def test_one_trial_when_the_time_is_over_and_longer_times_when_it_fails() -> None:
    clock = Clock()
    one = breaker(clock)
    for _ in range(3):
        one.failed()
    for seconds in (5, 10, 20, 20):
        assert one.state() == "open"
        assert not one.begin_trial()
        clock.now += seconds - 0.001
        assert one.state() == "open"
        assert one.wait_seconds() == pytest.approx(0.001)
        clock.now += 0.001
        assert one.state() == "half_open"
        assert one.begin_trial()
        assert not one.begin_trial()
        one.failed()
    clock.now += 20
    assert one.begin_trial()
    one.succeeded()
    assert one.state() == "closed"
    for _ in range(3):
        one.failed()
    assert one.wait_seconds() == pytest.approx(5)


def test_a_trial_that_tells_nothing_leaves_room_for_another() -> None:
    clock = Clock()
    one = breaker(clock)
    for _ in range(3):
        one.failed()
    clock.now += 5
    assert one.begin_trial()
    one.end_trial()
    assert one.begin_trial()


def test_failures_of_requests_from_before_do_not_prolong_it() -> None:
    clock = Clock()
    one = breaker(clock)
    for _ in range(50):
        one.failed()
    assert one.wait_seconds() == pytest.approx(5)
