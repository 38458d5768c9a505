"""What the gateway bench calls missed, and when it says that chunks came together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.gateway_goals import missed
from tests.clients.clients import Heard


def row(through: str, streams: float = 50, **figures: float) -> dict[str, Any]:
    good = {"first_p50": 1.0, "first_p99": 2.0, "late_p50": 0.3, "late_p99": 1.0}
    return {"through": through, "streams": streams, "per_cpu_second": 500.0} | good | figures


def test_nothing_is_missed() -> None:
    rows = [
        row("upstream"),
        row("direct", first_p50=1.9, first_p99=50.0),
        row("full", first_p50=3.9, first_p99=11.9, late_p50=3.2, late_p99=10.9),
        row("litellm", **worse()),
    ]
    assert missed(rows) == []


def worse() -> dict[str, float]:
    return {"first_p50": 30.0, "first_p99": 90.0, "late_p50": 4.0, "per_cpu_second": 20.0}


@pytest.mark.parametrize(
    ("way", "figures", "said"),
    [
        ("direct", {"first_p50": 2.0}, "direct adds 1.00 ms to first_p50"),
        ("direct", {"late_p50": 1.4}, "direct adds 1.10 ms to late_p50"),
        ("full", {"first_p50": 4.0}, "full adds 3.00 ms to first_p50"),
        ("full", {"first_p99": 12.0}, "full adds 10.00 ms to first_p99"),
        ("full", {"late_p99": 11.5}, "full adds 10.50 ms to late_p99"),
    ],
)
def test_added_time(way: str, figures: dict[str, float], said: str) -> None:
    (goal,) = missed([row("upstream"), row(way, **figures)])
    assert goal.startswith(said)
    # One stream and 200 are not judged by milliseconds.
    assert missed([row("upstream", 200), row(way, 200, **figures)]) == []


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"per_cpu_second": 500.0}, "requests per CPU-second: 500.00 against 500.00"),
        ({"first_p50": 0.9}, "time to the first byte, p50: 1.00 against 0.90"),
        ({"late_p50": 0.2}, "lateness of a chunk, p50: 0.30 against 0.20"),
    ],
)
def test_a_peer_is_ahead(figures: dict[str, float], said: str) -> None:
    (goal,) = missed([row("full", 200), row("vllm-router", 200, **(worse() | figures))])
    assert goal == f"full is behind vllm-router at 200 streams in {said}"


def test_chunks_that_come_together_are_told_from_those_that_do_not() -> None:
    Heard([0.1 * number for number in range(6)], "x").assert_spread()
    with pytest.raises(AssertionError, match="10 chunks came at 1 moments"):
        Heard([5.0 + 0.001 * number for number in range(10)], "x").assert_spread()
    with pytest.raises(AssertionError, match="no text"):
        Heard([0.1 * number for number in range(6)], "").assert_spread()
