"""The policy: groups, what stops a rollout, exit codes."""

from __future__ import annotations

import pytest

from pyinfra_deploy.rollout.policy import (
    Batch,
    Code,
    Course,
    Kind,
    Options,
    Step,
    exit_code,
    groups_foreseen,
    next_step,
    read_batch,
)

TEN = tuple(f"gpu{number:02}" for number in range(1, 11))
ONE_BY_ONE = Options(canary=1, batch=Batch(size=1))


def went(course: Course, **outcomes: Kind) -> Course:
    return Course(course.hosts, course.options, {**course.outcomes, **outcomes}, course.agreed)


@pytest.mark.parametrize(
    ("text", "hosts", "size"),
    [("25%", 10, 2), ("25%", 3, 1), ("100%", 7, 7), ("3", 10, 3), ("12", 10, 10), ("1%", 300, 3)],
)
def test_a_batch_is_a_number_or_a_share_rounded_down(text: str, hosts: int, size: int) -> None:
    batch = read_batch(text)
    assert batch.of(hosts) == size
    assert str(batch) == text


@pytest.mark.parametrize("text", ["0", "0%", "101%", "-1", "a", "", "1.5", "25 %%", "٣"])
def test_what_is_no_batch(text: str) -> None:
    with pytest.raises(ValueError, match="neither a number of hosts"):
        read_batch(text)


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        (Options(), [1, 2, 2, 2, 2, 1]),
        (Options(canary=2, batch=Batch(percent=50)), [2, 5, 3]),
        (Options(canary=0, batch=Batch(size=4)), [4, 4, 2]),
        (Options(batch=Batch(percent=100), pause=True), [1, 9]),
    ],
)
def test_groups_while_nothing_fails(options: Options, groups: list[int]) -> None:
    found = groups_foreseen(TEN, options)
    assert [len(group) for group in found] == groups
    assert tuple(host for group in found for host in group) == TEN


def test_a_canary_that_goes_back_stops_everything_whatever_may_fail() -> None:
    course = went(Course(TEN, Options(max_failures=9)), gpu01=Kind.BACK)
    step = next_step(course)
    assert (step.what, step.why) == (
        "stop", "the canary gpu01 went back to its previous release",
    )  # fmt: skip
    assert exit_code(course, step) == Code.STOPPED


@pytest.mark.parametrize("kind", [Kind.LOST, Kind.FAILED])
def test_a_canary_that_was_not_tried_is_followed_by_another_where_that_is_allowed(
    kind: Kind,
) -> None:
    course = went(Course(TEN, Options(max_failures=1)), gpu01=kind)
    assert next_step(course) == Step("go", ("gpu02",))
    assert next_step(went(course, gpu02=Kind.LIVE)) == Step("go", ("gpu03", "gpu04"))
    assert next_step(went(Course(TEN, Options()), gpu01=kind)).what == "stop"


def test_failures_are_counted_against_what_is_allowed() -> None:
    course = went(Course(TEN, Options(max_failures=1)), gpu01=Kind.LIVE, gpu02=Kind.BACK)
    assert next_step(course) == Step("go", ("gpu03", "gpu04"))
    course = went(course, gpu03=Kind.FAILED, gpu04=Kind.LIVE)
    step = next_step(course)
    assert (step.what, step.why) == ("stop", "gpu02, gpu03 failed, and 1 may fail")
    assert exit_code(course, step) == Code.STOPPED


def test_a_host_that_serves_nothing_stops_it_whatever_may_fail() -> None:
    course = went(Course(TEN, Options(max_failures=9)), gpu01=Kind.LIVE, gpu02=Kind.DOWN)
    step = next_step(course)
    assert (step.what, step.why) == ("stop", "gpu02 serves nothing")
    assert exit_code(course, step) == Code.DOWN


def test_a_host_that_has_it_already_is_canary_enough() -> None:
    course = went(Course(TEN, Options()), gpu01=Kind.SAME)
    assert next_step(course) == Step("go", ("gpu02", "gpu03"))


def test_without_a_canary_a_host_that_goes_back_is_a_failure_like_others() -> None:
    course = went(Course(TEN, Options(canary=0, max_failures=2)), gpu01=Kind.BACK)
    assert next_step(course).what == "go"


def test_somebody_is_asked_before_each_group_but_the_first() -> None:
    course = Course(("a", "b", "c"), Options(batch=Batch(size=1), pause=True))
    assert next_step(course) == Step("go", ("a",))
    course = went(course, a=Kind.LIVE)
    assert next_step(course) == Step("ask")
    assert exit_code(course, Step("ask")) == Code.PAUSED
    agreed = Course(course.hosts, course.options, course.outcomes, agreed=1)
    assert next_step(agreed) == Step("go", ("b",))


def test_nobody_is_asked_when_it_is_over() -> None:
    course = went(Course(("a",), Options(pause=True)), a=Kind.LIVE)
    assert next_step(course) == Step("done")


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ({"a": Kind.LIVE, "b": Kind.SAME}, Code.DONE),
        ({"a": Kind.LIVE, "b": Kind.BACK}, Code.WITH_FAILURES),
        ({"a": Kind.LIVE, "b": Kind.FAILED}, Code.WITH_FAILURES),
        ({"a": Kind.BACK, "b": Kind.LOST}, Code.LOST),
        ({"a": Kind.LOST, "b": Kind.DOWN}, Code.DOWN),
    ],
)
def test_the_exit_code_is_the_worst_of_what_happened(outcomes: dict[str, Kind], code: Code) -> None:
    course = Course(("a", "b"), Options(max_failures=2, canary=0), outcomes)
    assert exit_code(course, Step("done")) == code


def test_going_on_later_asks_the_same_question() -> None:
    """An interrupted rollout knows only outcomes; the next group follows from these."""
    course = went(Course(TEN, Options()), gpu01=Kind.LIVE, gpu03=Kind.LIVE)
    assert next_step(course) == Step("go", ("gpu02", "gpu04"))
