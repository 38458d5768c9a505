"""What became of a host, from what its run told and what the host says."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.rollout.outcome import Outcome, failed, from_status, succeeded
from pyinfra_deploy.rollout.policy import Kind

ERROR = {
    "what": "release r2 did not go live; release r1 serves again",
    "why": "exit status 2",
    "fix": "mend the settings",
    "detail": ["vllm: error: unrecognized arguments: --nope"],
}


def status(phase: str | None = "done", run: str = "ro1", **engine: Any) -> dict[str, Any]:
    known = {
        "current": "r1", "previous": None, "started": "r1", "active": "active",
        "golive_active": "inactive", "hold": None,
        "golive": {"phase": phase, "run": run, "cause": "it died"} if phase else None,
    }  # fmt: skip
    return {"rollout": None, "lease": None, "live": False, "engine": {**known, **engine}}


def judged(told: Any, seen: Any, said: tuple[str, ...] = ()) -> Outcome:
    return failed("gpu01", "ro1", "r2", told, said, seen)


def test_a_host_that_went_live_is_told_with_its_gates() -> None:
    result = {"release": "r2", "gates": {"golden": []}, "seconds": 7.5, "warnings": ["folds"]}
    found = succeeded("gpu01", "r2", {"result": result})
    assert (found.kind, found.serves, found.gates, found.seconds, found.notes) == (
        Kind.LIVE, "r2", {"golden": []}, 7.5, ("folds",),
    )  # fmt: skip


def test_a_host_that_only_converged_serves_what_it_did() -> None:
    assert succeeded("gpu01", "r2", None) == Outcome("gpu01", Kind.LIVE, "r2", "r2")


def test_a_host_whose_gates_failed_serves_its_previous_release() -> None:
    found = judged({"error": ERROR, "release": "r2"}, status("reverted"))
    assert (found.kind, found.serves, found.release) == (Kind.BACK, "r1", "r2")
    assert found.reason == "release r2 did not go live; release r1 serves again exit status 2"
    assert (found.fix, found.lines) == ("mend the settings", tuple(ERROR["detail"]))


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (None, Kind.LOST),
        (status("failed", active="failed"), Kind.DOWN),
        (status("failed"), Kind.DOWN),  # it runs, and nobody knows whether it answers
        (status("failed", answers=False), Kind.DOWN),
        (status("failed", answers=True), Kind.FAILED),
        (status("reverted", active="failed"), Kind.DOWN),
        (status("starting", golive_active="active"), Kind.LOST),
        (status("starting", active="inactive"), Kind.DOWN),
        (status("starting"), Kind.LOST),
        (status("reverted", run="another"), Kind.FAILED),
        # Killed, or its power was cut, and taken back by the host: no word about the release.
        (status("undone"), Kind.FAILED),
        (status(None), Kind.FAILED),
        (status(None, current=None, started=None, active="inactive"), Kind.FAILED),
        (status(None, active="failed"), Kind.DOWN),
        ({"rollout": None, "engine": None}, Kind.FAILED),
    ],
)
def test_what_the_host_says_decides(seen: Any, kind: Kind) -> None:
    assert judged(None, seen).kind == kind


def test_a_restart_of_the_same_release_that_failed_its_gates_serves_it() -> None:
    found = judged({"error": ERROR}, status("failed", started="r2", answers=True))
    assert (found.kind, found.serves) == (Kind.FAILED, "r2")
    assert found.in_words.startswith("gpu01: serves the release, but a step after that failed")
    silent = judged({"error": ERROR}, status("failed", started="r2", answers=False))
    assert (silent.kind, silent.serves) == (Kind.DOWN, None)


def test_a_check_after_the_go_live_that_led_back() -> None:
    told = {"error": {"what": "release r2 went live, and then: no"}, "back_to": "r1"}
    assert judged(told, status("done")).kind == Kind.BACK
    assert judged({**told, "back_to": None}, status("done", started="r2")).kind == Kind.FAILED


def test_without_an_error_of_its_own_the_last_line_says_why() -> None:
    found = judged(None, status(None), ("pulling", "pull: the hub is gone"))
    assert (found.reason, found.lines) == (
        "pull: the hub is gone", ("pulling", "pull: the hub is gone"),
    )  # fmt: skip
    assert judged(None, status(None)).reason == "its run ended without a word"
    assert judged(None, None).reason == "the host was not reached"
    at_work = judged(None, status("starting", golive_active="active"))
    assert at_work.reason.endswith("then run the same command again")


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (status("done", started="r2"), Kind.LIVE),
        (status("done", run="another", started="r2"), Kind.SAME),
        (status("reverted"), Kind.BACK),
        (status("reverted", run="another"), None),
        (status("done"), None),
        (status("judging", started="r2"), None),
        (status("done", started="r2", golive_active="active"), None),
        (status("done", started="r2", active="failed"), None),
        (None, None),
    ],
)
def test_an_interrupted_rollout_is_read_from_its_hosts(seen: Any, kind: Kind | None) -> None:
    found = from_status("gpu01", "ro1", "r2", seen)
    assert (found.kind if found else None) == kind


def test_a_step_after_the_go_live_that_failed_is_called_so() -> None:
    found = judged({"result": {"release": "r2"}}, status("done", started="r2"), ("nginx: no",))
    assert found.in_words == ("gpu01: serves the release, but a step after that failed: nginx: no")


def gateway(**more: Any) -> dict[str, Any]:
    known = {"current": "gateway-1", "service": "active", "nginx": "active", "answers": True}
    return {**known, **more}


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"nginx": "failed"}, "nginx.service is failed"),
        ({"service": "inactive", "answers": False}, "llm-gateway.service is inactive"),
        ({"answers": False}, "llm-gateway.service does not answer"),
    ],
)
@pytest.mark.parametrize("engine", [None, status()["engine"]])
def test_a_dead_gateway_serves_nobody(part: Any, said: str, engine: Any) -> None:
    seen = {"rollout": None, "engine": engine, "gateway": gateway(**part)}
    found = judged(None, seen, ("nginx: [emerg]",))
    assert found.kind == Kind.DOWN
    assert found.reason == f"{said}; nginx: [emerg]"
    assert "SERVES NOTHING" in found.in_words


def test_a_gateway_that_was_not_there_yet_is_no_outage() -> None:
    seen = {"engine": None, "gateway": gateway(current=None, nginx="absent", service="absent")}
    assert judged(None, seen).kind == Kind.FAILED


def test_a_gateway_that_was_taken_back_says_so() -> None:
    seen = {"engine": None, "gateway": gateway()}
    told = {"error": {"what": "what was new was taken back"}, "gateway": "back"}
    found = judged(told, seen)
    assert found.kind == Kind.BACK
    assert "its gateway went back to what it ran before: what was new" in found.in_words
    found = judged({**told, "gateway": "runs"}, seen)
    assert found.kind == Kind.FAILED
    assert "its gateway runs, but not as a client needs it" in found.in_words
    assert judged(told, {"engine": None, "gateway": gateway(answers=False)}).kind == Kind.DOWN
