"""What the watch makes of one look after another: hung, busy, loading, draining."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fleet_host.watch_state import (
    GIVE_UP,
    KILL,
    MISSES,
    STARTS,
    Look,
    Progress,
    Seen,
    State,
    next_state,
    progress_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

METRICS = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
vllm:generation_tokens_total{{engine="0",model_name="m"}} {made}
vllm:generation_tokens_created{{engine="0",model_name="m"}} 1.79e+09
vllm:prompt_tokens_total{{engine="0",model_name="m"}} 300.0
vllm:request_success_total{{engine="0",finished_reason="abort",model_name="m"}} {aborted}
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} 12.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
"""
WITHOUT_STATS = "process_cpu_seconds_total 12.5\n"


def metrics(made: float = 1.0, running: int = 4, waiting: int = 0, aborted: int = 0) -> str:
    return METRICS.format(made=made, running=running, waiting=waiting, aborted=aborted)


def silent(text: str | None, invocation: str = "a") -> Seen:
    return Seen(invocation, Look.SILENT, progress_of(text), "timed out")


def after(looks: Iterable[Seen], state: State | None = None) -> State:
    state = state or State(invocation="a", answered=True)
    for seen in looks:
        assert state.action == "", "it acted too early"
        state = next_state(state, seen)
    return state


def test_three_silent_looks_without_progress_are_a_hang() -> None:
    state = after([silent(metrics())] * MISSES)
    assert state.action == KILL
    assert "3 of 3 looks without an answer: timed out" in state.said


def test_two_are_not_and_an_answer_begins_anew() -> None:
    answer = Seen("a", Look.ANSWERED)
    state = after([silent(metrics()), silent(metrics()), answer, *[silent(metrics())] * 2])
    assert (state.action, state.misses) == ("", 2)


def test_an_engine_that_answers_late_and_gets_on_is_busy() -> None:
    """A full queue for ever: every look is silent, every look sees more tokens."""
    state = after(silent(metrics(made=made, waiting=500)) for made in range(100))
    assert state.action == ""
    assert "busy" in state.said


def test_our_own_questions_are_no_progress() -> None:
    """They wait, and are given up: both show in the metrics."""
    looks = [silent(metrics(waiting=number, aborted=number)) for number in range(MISSES)]
    assert after(looks).action == KILL


def test_busy_first_hung_later_is_found() -> None:
    looks = [silent(metrics(made=made)) for made in (1, 2, 3, 3, 3)]
    assert after(looks).action == KILL


def test_an_idle_engine_that_does_not_answer_hangs() -> None:
    assert after([silent(metrics(running=0))] * MISSES).action == KILL


def test_a_server_that_answers_nothing_at_all_hangs() -> None:
    assert after([silent(None)] * MISSES).action == KILL


def test_without_metrics_nothing_is_done_and_that_is_said() -> None:
    state = after([silent(WITHOUT_STATS)] * 20)
    assert state.action == ""
    assert "disable-log-stats" in state.said


@pytest.mark.parametrize("look", [Look.OTHERS, Look.DOWN, Look.LOADING])
def test_who_loads_drains_or_is_down_is_left_alone(look: Look) -> None:
    begun = [silent(metrics())] * (MISSES - 1)
    state = after([*begun, *[Seen("a", look)] * 50, *begun])
    assert state.action == ""
    assert state.misses == MISSES - 1


def test_after_the_kill_the_count_begins_anew() -> None:
    state = after([silent(metrics())] * MISSES)
    state = next_state(state, silent(metrics()))
    assert (state.action, state.misses) == ("", 1)


def test_starts_that_never_answer_are_given_up() -> None:
    """systemd counts by the hour; an engine that loads longer never reaches its limit."""
    starts = [Seen(str(number), Look.LOADING) for number in range(STARTS)]
    state = after(starts, State())
    assert state.action == ""
    assert next_state(state, Seen("next", Look.LOADING)).action == GIVE_UP


def test_starts_are_counted_in_a_row_and_not_those_of_a_go_live() -> None:
    starts = [Seen(str(number), Look.LOADING) for number in range(STARTS)]
    answered = after([*starts, Seen(starts[-1].invocation, Look.ANSWERED)], State())
    assert next_state(answered, Seen("next", Look.LOADING)).action == ""
    go_live = after([*starts, Seen("by go-live", Look.OTHERS)], State())
    assert next_state(go_live, Seen("next", Look.LOADING)).action == ""


def test_what_counts_as_progress() -> None:
    found = progress_of(metrics(running=3, waiting=2))
    assert found.load == 5.0
    assert found.counters is not None
    names = [name.partition("{")[0] for name, _ in found.counters]
    assert names == [
        "vllm:generation_tokens_total",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:request_success_total",
    ]
    assert progress_of(WITHOUT_STATS) == Progress(None, None)
    assert progress_of(None).deaf
