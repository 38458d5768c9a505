"""Where a rollout was that has not ended."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.rollout.policy import Batch, Kind, Options
from pyinfra_deploy.rollout.unfinished import course_of, unfinished

HOSTS = ("a", "b", "c", "d")


def document(identity: str = "ro1", state: str = "running", **more: Any) -> dict[str, Any]:
    known = {
        "id": identity, "kind": "rollout", "state": state, "began": "2026-11-30T08:00:00Z",
        "hosts": dict.fromkeys(HOSTS, "r2"),
        "options": {"canary": 1, "batch": "50%", "pause": True, "max_failures": 2},
    }  # fmt: skip
    return {**known, **more}


def status(phase: str, started: str, run: str = "ro1", active: str = "active") -> dict[str, Any]:
    return {
        "rollout": document(),
        "engine": {"golive": {"phase": phase, "run": run}, "started": started, "active": active},
    }


@pytest.mark.parametrize("state", ["running", "paused", "interrupted"])
def test_the_newest_that_has_not_ended_is_gone_on_with(state: str) -> None:
    new = document("ro2", state, began="2026-11-30T09:00:00Z")
    found = unfinished(
        {"a": {"rollout": document()}, "b": {"rollout": new}, "c": {"rollout": None}}
    )
    assert found == new


def test_one_that_a_lost_host_did_not_hear_the_end_of_has_ended() -> None:
    ended = document(state="ended")
    assert unfinished({"a": {"rollout": document()}, "b": {"rollout": ended}}) is None
    assert unfinished({}) is None


def test_one_that_another_has_followed_is_over() -> None:
    """ro2 had nothing to change on c, which still says that ro1 runs."""
    new = document("ro2", "ended", began="2026-11-30T09:00:00Z", hosts={"a": "r3"}, result="live")
    seen = {"a": {"rollout": new}, "c": {"rollout": document()}}
    assert unfinished(seen) is None
    # Where it could not take its hosts, it has followed nobody.
    seen["a"] = {"rollout": new | {"result": "not begun"}}
    assert unfinished(seen) == document()
    # What came before it has not followed it either.
    seen["a"] = {"rollout": new | {"began": "2026-11-30T07:00:00Z"}}
    assert unfinished(seen) == document()


def test_it_goes_on_where_it_was() -> None:
    seen = {
        "a": status("done", "r2"),
        "b": status("reverted", "r1"),
        "c": status("judging", "r2"),
    }
    course = course_of(document(), seen)
    assert course.outcomes == {"a": Kind.LIVE, "b": Kind.BACK}
    assert course.waiting == ("c", "d")
    assert course.options == Options(1, Batch(percent=50), pause=True, max_failures=2)
    assert course.agreed == 2  # who goes on has seen them


def test_a_host_that_is_not_as_it_should_be_has_its_turn_again() -> None:
    seen = {"a": status("done", "r2"), "b": status("reverted", "r1")}
    assert course_of(document(), seen, again=["a", "b"]).outcomes == {"b": Kind.BACK}
