"""Work on many things, shared out over this machine's processors."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Result = TypeVar("Result")

# A process of its own costs about as much as ten hosts.
LEAST_IN_A_SHARE = 25


def in_shares(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """[work(item) for item in items], and no other result: `work` must depend on its item alone.

    Small lists stay in this process. What raises in another one is done again in this one, which
    raises it.
    """
    number = max(1, min(len(os.sched_getaffinity(0)), len(items) // LEAST_IN_A_SHARE))
    # The first one before the others: what it reads for all of them (tables, templates, the model)
    # is then there in each forked process.
    first, items = [work(item) for item in items[:1]], items[1:]
    shares = [items[start::number] for start in range(number)]
    context = multiprocessing.get_context("fork")
    answers = []
    for share in shares[1:]:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(work, share, there), daemon=True)
        process.start()
        there.close()
        answers.append(here)
    done = [[work(item) for item in shares[0]]]
    for share, answer in zip(shares[1:], answers, strict=True):
        done.append(_received(answer) or [work(item) for item in share])
    return first + [done[at % number][at // number] for at in range(len(items))]


def _answer(work: Callable[[Item], Result], share: Sequence[Item], there: Connection) -> None:
    try:
        results = [work(item) for item in share]
    except Exception:
        results = []  # this process has no place to say it; the other one will
    there.send(results)


def _received(answer: Connection) -> list[Result]:
    """Empty when the other process failed, or was killed before it had sent all."""
    try:
        found: list[Result] = answer.recv()
    except (EOFError, OSError):
        return []
    return found
