"""Pure: what the watch makes of one look after another."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

# Silent looks in a row that count as hanging.
MISSES = 3
# Starts in a row that ended without a single answer: systemd's own limit counts by the hour, which
# an engine that loads for half of one never reaches.
STARTS = 5
KILL, GIVE_UP = "kill", "give up"
# What an engine core gets done, by vLLM's metrics; not what only arrives (waiting requests, hits of
# the prefix cache), nor what is given up, both of which our own questions would move.
# iteration_tokens_total also counts the chunks of a long prompt; the cache fills while it is read.
PROGRESS = re.compile(
    r"^(vllm:(?:prompt_tokens|generation_tokens|request_success|iteration_tokens_total_sum"
    r"|kv_cache_usage_perc|gpu_cache_usage_perc)\S*) ([0-9.eE+-]+|NaN)$",
    re.MULTILINE,
)
IDLE = re.compile(r'finished_reason="abort"|_created\{')
LOAD = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.M)


class Look(Enum):
    """What was found."""

    DOWN = "down"  # systemd's matter
    OTHERS = "others"  # a go-live or a drain
    LOADING = "loading"
    ANSWERED = "answered"
    SILENT = "silent"


@dataclass(frozen=True)
class Progress:
    """counters: what is done so far, by metric; None: the engine publishes none of them.
    load: requests that run or wait; None: not known. deaf: /metrics was not answered."""

    counters: tuple[tuple[str, str], ...] | None
    load: float | None
    deaf: bool = False


@dataclass(frozen=True)
class Seen:
    invocation: str
    look: Look
    progress: Progress | None = None
    said: str = ""


@dataclass(frozen=True)
class State:
    """misses: silent looks in a row. answered: this start has answered once. starts: starts in a
    row that have not. action: what is to be done now. said: why, in words."""

    invocation: str = ""
    misses: int = 0
    answered: bool = False
    starts: int = 0
    progress: Progress | None = None
    action: str = ""
    said: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "invocation": self.invocation,
            "misses": self.misses,
            "answered": self.answered,
            "starts_without_an_answer": self.starts,
            "said": self.said,
        }


def progress_of(metrics: str | None) -> Progress:
    """From the text of /metrics; None: it was not answered."""
    if metrics is None:
        return Progress(None, None, deaf=True)
    done = (match.groups() for match in PROGRESS.finditer(metrics) if not IDLE.search(match[1]))
    counters = tuple(sorted((name, value) for name, value in done))
    loads = LOAD.findall(metrics)
    return Progress(counters or None, sum(float(value) for value in loads) if loads else None)


def next_state(before: State, seen: Seen) -> State:
    """What one look changes. An action is for this look alone."""
    state = replace(before, action="", said="")
    if seen.look is Look.DOWN:
        return replace(state, misses=0, progress=None)
    if seen.invocation != before.invocation:
        starts = 0 if before.answered or not before.invocation else before.starts
        state = State(invocation=seen.invocation, starts=starts + 1)
    if seen.look is Look.ANSWERED:
        return replace(state, misses=0, answered=True, starts=0, progress=None)
    if seen.look is Look.OTHERS:
        return replace(state, misses=0, starts=0, progress=None)
    if state.starts > STARTS:
        words = f"{STARTS} starts in a row ended without an answer"
        return replace(state, misses=0, starts=0, action=GIVE_UP, said=words)
    if seen.look is Look.LOADING:
        return replace(state, misses=0, progress=None)
    return _silent(state, seen)


def _silent(state: State, seen: Seen) -> State:
    now = seen.progress or Progress(None, None)
    earlier = state.progress
    state = replace(state, progress=now)
    if earlier is None or now.deaf:
        pass  # the first silent look has nothing to compare with; a deaf engine proves no progress
    elif now.counters is not None and now.counters != earlier.counters:
        # Late, not stuck. The count begins anew with this look.
        return replace(state, misses=1, said=f"busy: no answer, but others get on ({seen.said})")
    elif now.counters is None and now.load != 0:
        return replace(
            state,
            misses=1,
            said="no answer, and without metrics (disable-log-stats) a hang cannot be told from a "
            "full queue: nothing is done",
        )
    misses = state.misses + 1
    said = f"{misses} of {MISSES} looks without an answer: {seen.said}"
    if misses < MISSES:
        return replace(state, misses=misses, said=said)
    return replace(state, misses=0, progress=None, action=KILL, said=said)
