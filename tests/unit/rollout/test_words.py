"""What an operator reads: downtime, groups, locks, drains."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy import lock_commands, service_commands
from pyinfra_deploy.operations.run import own_run
from pyinfra_deploy.planning import host_plan
from pyinfra_deploy.rollout.asking import Answers
from pyinfra_deploy.rollout.child import Ran
from pyinfra_deploy.rollout.foresee import alike, differences_of, downtime, group_lines
from pyinfra_deploy.rollout.serving import Serving
from tests.unit.planning import worlds

SETTINGS = worlds.settings_with({"engine": {"drain_seconds": 90}, "rollout": {"soak_seconds": 20}})


def test_a_single_host_is_down_and_for_how_long_is_told() -> None:
    engine = {"golive": {"start_seconds": 412.4}}
    serving = Serving(now={"gpu01": "qwen"}, coming={"gpu01": "qwen"})
    (line,) = downtime([["gpu01"]], serving, {"gpu01": (SETTINGS, engine)})
    assert line == (
        "DOWNTIME: gpu01 is the only host that serves qwen: new requests are answered 503 with "
        "Retry-After during draining (at most 90 s), the start of the engine (the last one took "
        "412 s) and the soak (20 s)"
    )


def test_a_host_that_is_drained_does_not_stand_in_for_another() -> None:
    none = worlds.settings_with({"rollout": {"soak_seconds": 0}})
    serving = Serving(
        now={"a": "qwen", "b": "qwen", "c": "bge"}, coming={"a": "qwen"}, out=frozenset({"b"})
    )
    (line,) = downtime([["a"]], serving, {"a": (none, {})})
    assert "a is the only host that serves qwen (b does not: drained, down or not reached)" in line
    assert line.endswith(
        "draining (at most 120 s) and the start of the engine (as long as it takes)"
    )


@pytest.mark.parametrize(
    ("groups", "now", "coming", "switched"),
    [
        ([["a"], ["b"]], {"a": "m", "b": "m"}, {"a": "m"}, {"a": (SETTINGS, {})}),
        ([["a"]], {"a": "m"}, {}, {}),
        ([["web"]], {}, {}, {}),
        # The old name is given up: the new one is served by the first host then.
        ([["a"], ["b"]], {"a": "m", "b": "m"}, {"a": "n", "b": "n"},
         {"a": (SETTINGS, {}), "b": (SETTINGS, {})}),
    ],
)  # fmt: skip
def test_where_another_serves_or_nothing_did_there_is_no_downtime(
    groups: Any, now: Any, coming: Any, switched: Any
) -> None:
    assert downtime(groups, Serving(now=now, coming=coming), switched) == []


def test_groups_and_hosts_alike() -> None:
    models = {"a": "qwen", "b": "bge", "c": "qwen"}
    assert list(group_lines([["a"], ["b"], ["c"]], canary=True, coming=models)) == [
        "canary of qwen: a", "canary of bge: b", "group 3: c",
    ]  # fmt: skip
    assert list(group_lines([["a"], ["b", "c"]], canary=True)) == ["canary: a", "group 2: b, c"]
    assert list(group_lines([["a"]], canary=False)) == ["group 1: a"]
    assert alike({"a": ["x"], "b": ["y"], "c": ["x"]}) == [(["a", "c"], ("x",)), (["b"], ("y",))]


def test_differences_are_those_of_the_release_that_comes() -> None:
    before = worlds.settings_with()
    after = worlds.settings_with({"engine": {"args": {"max-model-len": 4096}}})
    snapshot = worlds.converged(before, worlds.artefacts_with(before))
    engine = snapshot["engines"]["main"]
    plan = host_plan.plan_host("gpu01", worlds.ALL, before, snapshot, worlds.artefacts_with(before))
    assert plan.release is not None
    engine["configuration"] = plan.release.configuration
    assert differences_of(plan, snapshot) == []
    plan = host_plan.plan_host("gpu01", worlds.ALL, after, snapshot, worlds.artefacts_with(after))
    assert "--max-model-len: 16384 -> 4096" in differences_of(plan, snapshot)


def lease(**more: Any) -> dict[str, Any]:
    me = own_run().as_spec()
    return {**me, "since": 1000.0, "until": 9e9, **more}


def test_who_holds_a_lock_and_for_how_long() -> None:
    answer = {"lease": lease(run="p1"), "live": True, "rollout": None}
    said = lock_commands.in_words(answer, 1000.0 + 3700)
    assert said.startswith(f"held by {own_run().owner} for 1 h 1 min: run p1 on ")
    assert "gone" not in said
    rollout = {"state": "running", "kind": "rollback", "id": "ro7"}
    answer |= {"lease": lease(pid_start=1), "rollout": rollout}
    said = lock_commands.in_words(answer, 1065.0)
    assert "for 1 min 5 s: rollback ro7 on" in said
    assert said.endswith("that process is gone")


def test_a_free_host_says_what_has_not_ended() -> None:
    rollout = {"state": "paused", "kind": "rollout", "id": "ro7", "owner": "ada"}
    answer = {"lease": None, "live": False, "rollout": rollout}
    assert lock_commands.in_words(answer, 0) == "free; rollout ro7 of ada is paused"
    assert lock_commands.in_words({**answer, "rollout": None}, 0) == "free"
    assert lock_commands.in_words({**answer, "lease": lease()}, 0).startswith("free")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"changed": True, "running": 0.0, "drain": {}}, "drained; no request runs"),
        ({"changed": True, "running": 2.0, "drain": {}}, "drained; 2 requests still run"),
        ({"changed": False, "running": None, "drain": {"by": "bob", "reason": "fan"}},
         "drained (already, by bob: fan); the engine does not tell what runs"),
    ],
)  # fmt: skip
def test_a_drain_in_words(answer: Any, said: str) -> None:
    assert service_commands.drained_in_words(answer) == said


def test_why_a_host_has_no_answer() -> None:
    answers = Answers()
    answers["a"] = {}
    answers.lost["b"] = "the host was not reached"
    answers.refused["c"] = {"what": "no", "why": "because", "fix": "do", "detail": ["line"]}
    assert answers.missing == ["b", "c"]
    assert answers.problem("a") == ""
    assert answers.problem("b") == "the host was not reached"
    assert answers.problem("c") == "no\n  why: because\n  fix: do\n  | line"


def test_what_pyinfra_printed_of_a_host() -> None:
    lines = ("--> Starting", "    [gpu1] one", "    [gpu11] other", "    [gpu1] two", "x [gpu1] no")
    operation = {"name": "Give the host back", "success": ["gpu1"], "no_change": [], "error": []}
    ran = Ran(1, lines, {"failed_hosts": ["gpu11"], "operations": [operation]})
    assert ran.about("gpu1") == ("one", "two")
    assert ran.about("gpu1", 1) == ("two",)
    assert (ran.finished("gpu1"), ran.finished("gpu11")) == (True, False)
    assert Ran(0, ()).finished("gpu1") is False
