"""The estimates against start-ups that people published. The rows are not part of this project:
$CORPUS names the directory; docs/memory-estimates.md has the result."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench import kv_estimate
from tests.bench.recorded_starts import Start, read_starts

CORPUS = os.environ.get("CORPUS", "")


@pytest.fixture(scope="module")
def starts() -> list[Start]:
    if not (Path(CORPUS) / "kv_logs.tsv").is_file():
        pytest.skip("CORPUS does not name a directory with kv_logs.tsv")
    return read_starts(Path(CORPUS))


def test_kv_bytes_per_token_are_exact_in_every_row(starts: list[Start]) -> None:
    verdicts = [kv_estimate.cache_verdict(start) for start in starts]
    judged = [verdict for verdict in verdicts if not verdict.excluded]
    assert len(judged) >= 20
    assert [verdict for verdict in judged if not verdict.good] == []


def test_available_memory_lies_in_the_range(starts: list[Start]) -> None:
    verdicts = [kv_estimate.memory_verdict(start) for start in starts]
    judged = [verdict for verdict in verdicts if not verdict.excluded]
    assert len(judged) >= 20
    off = [verdict for verdict in judged if not verdict.good]
    assert len(off) <= 0.05 * len(judged), off
    close = sum(abs(verdict.error) <= 0.05 for verdict in judged)
    assert close >= 0.85 * len(judged)


def test_the_range_is_narrow_enough_to_say_something(starts: list[Start]) -> None:
    """A range over the whole card would hold every start."""
    verdicts = [kv_estimate.memory_verdict(start) for start in starts]
    widths = sorted(verdict.width for verdict in verdicts if not verdict.excluded)
    assert widths[len(widths) // 2] <= 0.12
    assert widths[-1] <= 0.27


def test_so_it_does_where_the_weights_are_not_from_the_same_log(starts: list[Start]) -> None:
    verdicts = [kv_estimate.memory_verdict(one) for one in starts if not one.own_weights]
    judged = [verdict for verdict in verdicts if not verdict.excluded]
    assert len(judged) >= 12
    assert sum(verdict.good for verdict in judged) >= 0.95 * len(judged)
    assert sum(abs(verdict.error) <= 0.05 for verdict in judged) >= 0.85 * len(judged)


def test_few_starts_that_worked_are_warned_of(starts: list[Start]) -> None:
    served = [
        one for one in starts if not one.failed and not kv_estimate.memory_verdict(one).excluded
    ]
    warned = [one.id for one in served if kv_estimate.memory_warnings(one)]
    assert len(served) >= 20
    assert len(warned) <= 0.2 * len(served), warned


def test_so_it_does_in_rows_that_no_constant_came_from(starts: list[Start]) -> None:
    held_out = [start for start in starts if start.id not in kv_estimate.CALIBRATION]
    verdicts = [kv_estimate.memory_verdict(start) for start in held_out]
    judged = [verdict for verdict in verdicts if not verdict.excluded]
    assert len(judged) >= 10
    assert sum(verdict.good for verdict in judged) >= 0.95 * len(judged)
    assert sum(abs(verdict.error) <= 0.05 for verdict in judged) >= 0.85 * len(judged)


def test_starts_that_failed_are_refused_or_warned_about(starts: list[Start]) -> None:
    verdicts = [kv_estimate.failure_verdict(start) for start in starts]
    judged = [verdict for verdict in verdicts if not verdict.excluded]
    assert len(judged) >= 10
    assert [verdict for verdict in judged if not verdict.good] == []


def test_starts_that_worked_are_not_refused(starts: list[Start]) -> None:
    """A refusal that is wrong is worse than none."""
    wrong = []
    for start in starts:
        if start.failed or start.gpu is None or start.shape is None:
            continue
        if kv_estimate.memory_verdict(start).excluded:
            continue
        refused = kv_estimate.refusals(start)
        if refused:
            wrong.append((start.id, refused))
    assert wrong == []
