"""A deploy does not bring back what a rollback took back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.deploys.verify import verification_for
from pyinfra_deploy.planning import host_plan
from tests.unit.planning import worlds

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan

OLD, NEW = {"max-model-len": 8192}, {"max-model-len": 4096}


def planned(hold: Any, args: dict[str, Any] = NEW, **engine: Any) -> HostPlan:
    """A host that runs the release of OLD, with settings that ask for that of `args`."""
    before = worlds.settings_with({"engine": {"args": {"=": OLD}}})
    after = worlds.settings_with({"engine": {"args": {"=": args}}})
    snapshot = worlds.converged(before, worlds.artefacts_with(before))
    snapshot["engines"]["main"] |= {"hold": hold, **engine}
    return host_plan.plan_host("gpu01", worlds.ALL, after, snapshot, worlds.artefacts_with(after))


def identity(args: dict[str, Any]) -> str:
    plan = planned(None, args)
    assert plan.release_id is not None
    return plan.release_id


def hold_of(kept: str, *rejected: str, **more: Any) -> dict[str, Any]:
    return {
        "kept": kept, "rejected": list(rejected), "served_model_name": "old-name", "who": "ada",
        "why": "it was slow", "when": "2026-11-30T08:00:00Z", **more,
    }  # fmt: skip


def held() -> HostPlan:
    return planned(hold_of(identity(OLD), identity(NEW)))


def test_without_a_hold_it_would_go_live() -> None:
    assert planned(None).go_live == f"release {identity(NEW)} instead of {identity(OLD)}"


def test_the_engine_stays_and_the_hold_is_told() -> None:
    plan = held()
    assert plan.go_live == ""
    assert plan.verify == ""
    (said,) = [str(one) for one in plan.findings if one.id == "engine.held"]
    for words in (identity(NEW), identity(OLD), "2026-11-30T08:00:00Z, by ada: it was slow",
                  "fleet unhold INVENTORY --limit gpu01"):  # fmt: skip
        assert words in said


def test_the_rest_converges() -> None:
    plan = planned(hold_of(identity(OLD), identity(NEW)))
    before = worlds.settings_with({"engine": {"args": {"=": OLD}}})
    snapshot = worlds.converged(before, worlds.artefacts_with(before))
    snapshot["files"].pop("/etc/tmpfiles.d/llm-fleet.conf")
    snapshot["engines"]["main"]["hold"] = hold_of(identity(OLD), identity(NEW))
    settings = plan.settings
    plan = host_plan.plan_host(
        "gpu01", worlds.ALL, settings, snapshot, worlds.artefacts_with(settings)
    )
    assert plan.reasons() == ["write /etc/tmpfiles.d/llm-fleet.conf"]


def test_other_settings_end_it() -> None:
    third = {"max-model-len": 2048}
    plan = planned(hold_of(identity(OLD), identity(NEW)), third)
    assert plan.go_live == f"release {identity(third)} instead of {identity(OLD)}"
    assert plan.held is None


def test_settings_that_ask_for_what_is_kept_say_nothing() -> None:
    plan = planned(hold_of(identity(OLD), identity(NEW)), OLD)
    assert (plan.go_live, plan.held) == ("", None)


def test_a_held_engine_that_is_down_is_started_again_with_what_is_kept() -> None:
    before = held()
    units = {"main": "llm-engine@main.service"}
    settings = before.settings
    old = worlds.settings_with({"engine": {"args": {"=": OLD}}})
    snapshot = worlds.converged(old, worlds.artefacts_with(old))
    snapshot["engines"]["main"]["hold"] = hold_of(identity(OLD), identity(NEW))
    snapshot["units"][units["main"]] |= {"active": "failed"}
    plan = host_plan.plan_host(
        "gpu01", worlds.ALL, settings, snapshot, worlds.artefacts_with(settings)
    )
    assert plan.go_live == "llm-engine@main.service is failed"
    assert plan.held is not None
    assert verification_for(plan)["model"] == "old-name"


def test_a_rollback_that_was_killed_before_its_go_live_is_ended_by_the_deploy() -> None:
    plan = planned(hold_of("0ther", identity(NEW)))
    assert plan.go_live == f"release 0ther, which is held, instead of {identity(OLD)}"


@pytest.mark.parametrize("hold", [None, [], {"kept": 7}, {"error": "no JSON"}])
def test_what_is_no_hold_holds_nothing(hold: Any) -> None:
    assert planned(hold).held is None
