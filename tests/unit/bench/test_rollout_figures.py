"""What the bench of a rollout reads in its record."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.rollout import figures


def at(second: int) -> str:
    return f"2026-11-30T08:00:{second:02}Z"


def complete(**change: Any) -> dict[str, Any]:
    turns = [("a", 4, 12), ("b", 13, 24)]
    events = [{"when": at(2), "what": "hosts taken", "hosts": ["a", "b"]}]
    for host, began, ended in turns:
        events += [
            {"when": at(began), "what": "switching", "hosts": [host]},
            {"when": at(ended), "what": f"{host}: serves the release", "hosts": [host]},
        ]
    end = {"what": "complete", "why": "", "code": 0, "when": at(26)}
    return {"began": at(0), "groups": [["a"], ["b"]], "events": events, "end": end} | change


def test_engines_starts_are_left_out() -> None:
    found = figures(complete(), {"a": 3.0, "b": 5.0})
    assert found.a_host == (26 - 3 - 5) / 2
    assert found.turns == {"a": 5.0, "b": 6.0}


@pytest.mark.parametrize(
    "change",
    [
        {"end": None},
        {"end": {"what": "stopped", "code": 3, "when": at(26)}},
        {"groups": [["a", "b"]]},
        {"events": []},
    ],
)
def test_what_is_no_complete_rollout_one_by_one_is_no_figure(change: Any) -> None:
    with pytest.raises(ValueError, match=r"not a complete|turns of"):
        figures(complete(**change), {"a": 3.0, "b": 5.0})
