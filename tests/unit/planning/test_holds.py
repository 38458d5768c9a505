"""A deploy does not bring back what a rollback took back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.deploys import session
from pyinfra_deploy.deploys.verify import verification_for
from pyinfra_deploy.planning import gateway_config, host_plan, rejected
from pyinfra_deploy.planning.gateway_plan import CONFIGURATION_DIFFERS
from pyinfra_deploy.planning.hold import read_hold
from pyinfra_deploy.planning.release import digest_of_text
from tests.unit.planning import worlds

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan
    from pyinfra_deploy.settings.schema import Settings

OLD, NEW = {"max-model-len": 8192}, {"max-model-len": 4096}


def settings_of(args: dict[str, Any]) -> Settings:
    return worlds.settings_with({"engine": {"args": {"=": args}}})


def world_of(hold: Any, gateway_held: Any = None) -> dict[str, Any]:
    """A host that runs the release of OLD. gateway_held: the hold that its gateway service's
    configuration is of; None: that of the settings."""
    before = settings_of(OLD)
    snapshot = worlds.converged(before, worlds.artefacts_with(before))
    snapshot["engines"]["main"]["hold"] = hold
    text = gateway_config.service_text(worlds.ALL, before, (), read_hold(gateway_held))
    assert text is not None
    for place in (snapshot["gateway"], snapshot["state"]["verified"]):
        place["configuration"] = digest_of_text(text)
    return snapshot


def plan_of(snapshot: dict[str, Any], args: dict[str, Any] = NEW) -> HostPlan:
    settings = settings_of(args)
    return host_plan.plan_host(
        "gpu01", worlds.ALL, settings, snapshot, worlds.artefacts_with(settings)
    )


def planned(hold: Any, args: dict[str, Any] = NEW) -> HostPlan:
    """After a rollback to the release of OLD, with settings that ask for that of `args`."""
    return plan_of(world_of(hold, hold), args)


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
    hold = hold_of(identity(OLD), identity(NEW))
    snapshot = world_of(hold, hold)
    assert plan_of(snapshot).reasons() == []
    snapshot["files"].pop("/etc/tmpfiles.d/llm-fleet.conf")
    assert plan_of(snapshot).reasons() == ["write /etc/tmpfiles.d/llm-fleet.conf"]


def test_the_gateway_has_the_name_of_what_is_held() -> None:
    """Also where the rollback was killed before it could say so to the gateway."""
    hold = hold_of(identity(OLD), identity(NEW))
    plan = plan_of(world_of(hold))
    assert (plan.go_live, plan.gateway_activate) == ("", CONFIGURATION_DIFFERS)
    assert plan.gateway_text is not None
    (backend,) = json.loads(plan.gateway_text)["backends"]
    assert backend["models"] == ["old-name"]
    assert verification_for(plan)["model"] == "old-name"


def test_the_end_of_a_hold_brings_the_gateway_the_settings_name() -> None:
    snapshot = world_of(None, hold_of(identity(OLD), identity(NEW)))
    plan = plan_of(snapshot)
    assert plan.go_live
    assert plan.gateway_at_go_live
    assert plan.gateway_text is not None
    (backend,) = json.loads(plan.gateway_text)["backends"]
    assert (backend["models"], backend["max_model_len"]) == (["Qwen/Qwen3-32B"], 4096)


def test_other_settings_end_it() -> None:
    third = {"max-model-len": 2048}
    plan = planned(hold_of(identity(OLD), identity(NEW)), third)
    assert plan.go_live == f"release {identity(third)} instead of {identity(OLD)}"
    assert plan.held is None


def test_settings_that_ask_for_what_is_kept_say_nothing() -> None:
    plan = planned(hold_of(identity(OLD), identity(NEW)), OLD)
    assert (plan.go_live, plan.held) == ("", None)


def test_a_held_engine_that_is_down_is_started_again_with_what_is_kept() -> None:
    hold = hold_of(identity(OLD), identity(NEW))
    snapshot = world_of(hold, hold)
    snapshot["units"]["llm-engine@main.service"] |= {"active": "failed"}
    plan = plan_of(snapshot)
    assert plan.go_live == "llm-engine@main.service is failed"
    assert plan.held is not None
    assert verification_for(plan)["model"] == "old-name"


def test_a_rollback_that_was_killed_before_its_go_live_is_ended_by_the_deploy() -> None:
    plan = planned(hold_of("0ther", identity(NEW)))
    assert plan.go_live == f"release 0ther, which is held, instead of {identity(OLD)}"


@pytest.mark.parametrize("hold", [None, [], {"kept": 7}, {"error": "no JSON"}])
def test_what_is_no_hold_holds_nothing(hold: Any) -> None:
    assert planned(hold).held is None


def test_what_a_rollout_took_back_is_refused_by_a_deploy_and_told_to_a_rollout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot = world_of(None)
    entry = {"why": "a golden prompt", "when": "2026-11-30T08:00:00Z"}
    snapshot["engines"]["main"]["rejected"] = {identity(NEW): entry, identity(OLD): entry}
    plan = plan_of(snapshot)
    assert plan.refused == ()
    (said,) = [one for one in plan.findings if one.id == rejected.ID == "engine.rejected"]
    for words in (identity(NEW), "2026-11-30T08:00:00Z: a golden prompt", "fleet rollout"):
        assert words in str(said)
    monkeypatch.setattr(session, "unusable_secrets", lambda *_: ())
    monkeypatch.setattr(session, "this_rollout", lambda: None)
    assert [one.severity for one in session.refusals_of(plan, {})] == ["refuse"]
    monkeypatch.setattr(session, "this_rollout", object)
    assert session.refusals_of(plan, {}) == ()
    # What serves is no news, and other settings are not concerned.
    assert [one for one in plan_of(snapshot, OLD).findings if one.id == rejected.ID] == []
    snapshot["engines"]["main"]["rejected"] = {identity(OLD): entry}
    assert [one for one in plan_of(snapshot).findings if one.id == rejected.ID] == []


def test_a_held_release_keeps_its_own_binding() -> None:
    """It may run on more GPUs than what the settings ask for; each deploy would go live again."""
    hold = hold_of(identity(OLD), identity(NEW))
    snapshot = world_of(hold, hold)
    for place in (snapshot["engines"]["main"]["started"], snapshot["state"]["verified"]):
        place["binding"] = digest_of_text("CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7\n")
    assert plan_of(snapshot).reasons() == []
    assert "binding has changed" in plan_of(snapshot, OLD).go_live
