"""A deploy as a step of a rollout, and a rollback: whose run it is, gates, what is told, the way
back of a check after the go-live."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.operations import (
    engine_steps,
    gate,
    gateway_steps,
    go_live,
    lease,
    packing,
    rollback_steps,
    rollout_run,
    run,
    service_checks,
)
from tests.fakes.pyinfra_host import ROOT, refusal
from tests.unit.operations.test_engine_steps import NEW, jobs_end, plan_of
from tests.unit.planning import worlds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyinfra_deploy.planning.hold import Hold
    from tests.fakes.pyinfra_host import PyinfraWorld

PARENT = {"owner": "ada@desk", "machine": "desk:m:b", "run": "p1", "pid": 7, "pid_start": 9}
WENT_LIVE = {"state": "done", "result": {"release": "r2", "from": "r1", "gates": {"golden": []}}}


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: PyinfraWorld) -> Iterator[Path]:
    """Where the child of a rollout tells what became of hosts."""
    step = rollout_run.RolloutRun("ro1", PARENT, tmp_path)
    monkeypatch.setenv(rollout_run.VARIABLE, step.as_variable())
    monkeypatch.setattr(engine_steps, "_pulled", {})
    monkeypatch.setattr(go_live, "_went_live", {})
    for function in (rollout_run.this_rollout, run.this_run):
        function.cache_clear()
    for name in ("gpu01", "gpu02"):
        world.host(name).host_data["fleet"] = {"host": name}
    yield tmp_path
    for function in (rollout_run.this_rollout, run.this_run):
        function.cache_clear()


@pytest.fixture(autouse=True)
def _messages(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pyinfra")


def said(told: Path, host: str = "gpu01") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((told / f"{host}.json").read_text())
    return found


def test_the_run_is_the_rollouts_and_its_lease_is_kept(world: PyinfraWorld, told: Path) -> None:
    host = world.host()
    assert lease.acquire(world.state, host, llm_root=ROOT, generation_seen=4, lease_seen=None)
    lease.renew(world.state, host, llm_root=ROOT)
    lease.release(world.state, host)
    assert world.script.commands() == ["lease acquire", "lease renew"]
    spec = world.script.sent[0].spec
    assert {key: spec[key] for key in PARENT} == PARENT
    assert spec["ttl_seconds"] == rollout_run.TTL_SECONDS


def test_a_go_live_has_gates_and_the_rollouts_name(world: PyinfraWorld, told: Path) -> None:
    jobs_end(world, WENT_LIVE)
    settings = {"golden_prompts": [{"prompt": "2+2=", "must_contain": "4", "chat": False}],
                "soak_seconds": 9, "error_budget_percent": 5}  # fmt: skip
    plan = plan_of(engine=NEW)
    plan = type(plan)(**{**plan.__dict__, "settings": worlds.settings_with({"rollout": settings})})
    assert world.run(engine_steps.go_live, plan=plan, verification=None)
    (job,) = [sent.spec["spec"] for sent in world.script.sent if sent.command.endswith("job start")]
    assert job["run"] == "ro1"
    assert job["gates"] == {
        "golden": [{"prompt": "2+2=", "must_contain": ["4"], "max_tokens": 64, "chat": False}],
        "answer_seconds": 30,
        "soak_seconds": 9,
        "error_budget": 0.05,
    }
    assert said(told) == {"result": WENT_LIVE["result"]}


def test_a_deploy_of_its_own_has_none(world: PyinfraWorld) -> None:
    run.this_run.cache_clear()
    assert go_live.go_live_spec(worlds.settings_with(), "r2", "m")["gates"] is None


def test_a_failure_is_told_and_the_others_of_the_group_go_on(
    world: PyinfraWorld, told: Path
) -> None:
    error = {"what": "release r2 did not go live", "why": "it died", "fix": "mend", "detail": ["x"]}
    jobs_end(world, {"state": "failed", "error": error})
    assert not world.run(engine_steps.go_live, plan=plan_of(engine=NEW), verification=None)
    assert said(told)["error"] == {"step": "go-live", **error}
    assert gate.closed_by(world.state) is None


def verified_badly(world: PyinfraWorld, *statuses: Any) -> list[dict[str, Any]]:
    """The go-lives of a host that does not pass through HTTPS."""
    jobs_end(world, *statuses)
    world.script.says("verify", refusal("the service is open"))
    plan = plan_of(engine=NEW)
    assert not world.run(engine_steps.go_live, plan=plan, verification={"model": "m"})
    return [sent.spec["spec"] for sent in world.script.sent if sent.command.endswith("job start")]


def test_a_check_after_the_go_live_leads_back_the_same_way(world: PyinfraWorld, told: Path) -> None:
    back = {"state": "done", "result": {"release": "r1", "from": "r2"}}
    _, second = verified_badly(world, WENT_LIVE, back)
    assert (second["release"], second["gates"], second["probe"]["model"]) == ("r1", None, "")
    assert second["rejects"]["release"] == "r2"
    assert "what a client has to see" in second["rejects"]["why"]
    assert said(told)["back_to"] == "r1"
    assert "went live, and then" in said(told)["error"]["what"]


def test_a_way_back_that_fails_is_told_as_none(world: PyinfraWorld, told: Path) -> None:
    verified_badly(world, WENT_LIVE, {"state": "failed", "error": {"what": "no"}})
    assert said(told)["back_to"] is None


def test_the_first_release_has_nothing_to_go_back_to(
    world: PyinfraWorld, told: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = {"state": "done", "result": {"release": "r1", "from": None}}
    assert len(verified_badly(world, first)) == 1
    assert "there is no other release to go back to" in caplog.text


def test_without_a_rollout_a_failed_check_changes_nothing(
    world: PyinfraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_steps, "_pulled", {})
    monkeypatch.setattr(go_live, "_went_live", {})
    assert len(verified_badly(world, WENT_LIVE)) == 1


def test_a_last_verification_leads_back_too(world: PyinfraWorld, told: Path) -> None:
    jobs_end(world, WENT_LIVE, {"state": "done", "result": {"release": "r1"}})
    plan = plan_of(engine=NEW)
    assert world.run(engine_steps.go_live, plan=plan, verification=None)
    world.script.says("verify", refusal("no"))
    arguments: dict[str, Any] = {"plan": plan, "verification": {}}
    assert not world.run(service_checks.verify_service, **arguments)
    assert said(told)["back_to"] == "r1"


def no_text(_held: Hold | None) -> str | None:
    """The gateway service's configuration, in mode direct."""
    return None


def roll_back(
    world: PyinfraWorld,
    verification: Any = None,
    *,
    switch: bool = True,
    gateway_text: Callable[[Hold | None], str | None] = no_text,
) -> bool:
    target = {"kept": "r1", "rejected": ["r2"], "who": "ada", "why": "slow", "switch": switch}
    world.script.says("hold begin", {"hold": {"kept": "r1", "served_model_name": "old"}})
    world.script.says("version", {"program": packing.host_program_digest()})
    return world.run(
        rollback_steps.roll_back,
        settings=worlds.settings_with(),
        target=target,
        verification=verification,
        gateway_text=gateway_text,
    )


def test_a_rollback_holds_then_switches_with_the_same_gates(
    world: PyinfraWorld, told: Path
) -> None:
    result = {"release": "r1", "from": "r2"}
    jobs_end(world, {"state": "done", "result": result})
    world.script.says("verify", {"checks": []})
    assert roll_back(world, {"model": "new"})
    assert world.script.commands() == [
        "version", "lease acquire", "hold begin", "job start", "job status", "verify",
    ]  # fmt: skip
    _, _, held, start, _, verify = [sent.spec for sent in world.script.sent]
    assert held == {"engine": "main", "kept": "r1", "rejected": ["r2"], "who": "ada", "why": "slow"}
    job = start["spec"]
    assert (job["release"], job["probe"]["model"], job["fitness"]) == ("r1", "old", None)
    assert job["gates"]["soak_seconds"] == 60
    assert verify["model"] == "old"
    assert said(told) == {"result": result}


def test_a_host_that_runs_it_is_only_held(world: PyinfraWorld, told: Path) -> None:
    assert roll_back(world, switch=False)
    assert world.script.commands() == ["version", "lease acquire", "hold begin"]
    assert said(told)["result"] == {"release": "r1", "changed": False}


def test_a_rollback_that_fails_gives_its_hold_up(world: PyinfraWorld, told: Path) -> None:
    jobs_end(world, {"state": "failed", "error": {"what": "no"}})
    assert not roll_back(world)
    assert world.script.commands()[-1] == "hold end"
    assert world.script.sent[-1].spec["give_up"] is True
    assert said(told)["error"]["what"] == "no"


def test_a_rollback_that_is_not_seen_to_its_end_stays_held(world: PyinfraWorld, told: Path) -> None:
    """Its go-live goes on; ended, the hold would let a deploy bring the rejected release back."""
    world.script.says("job start", ConnectionError("gone"))
    assert not roll_back(world)
    assert "hold end" not in world.script.commands()


def test_a_rollback_that_clients_cannot_use_is_undone(world: PyinfraWorld, told: Path) -> None:
    jobs_end(world, {"state": "done", "result": {"release": "r1", "from": "r2"}}, {"state": "done"})
    world.script.says("verify", refusal("no"))
    assert not roll_back(world, {"model": "new"})
    commands = world.script.commands()
    assert commands.index("hold end") < len(commands) - 1 - commands[::-1].index("job start")
    assert said(told)["back_to"] == "r2"


def test_a_release_that_is_not_there_is_told(world: PyinfraWorld, told: Path) -> None:
    world.script.says("hold begin", refusal("release r1 of engine main is not on this host"))
    target = {"kept": "r1", "rejected": [], "who": "ada", "why": "x", "switch": True}
    settings = worlds.settings_with()
    arguments: dict[str, Any] = {
        "settings": settings, "target": target, "verification": None, "gateway_text": no_text,
    }  # fmt: skip
    assert not world.run(rollback_steps.roll_back, **arguments)
    assert "is not on this host" in said(told)["error"]["what"]


def test_a_host_with_an_older_program_gets_this_checkouts(world: PyinfraWorld, told: Path) -> None:
    """The older one knows no holds, and would pass over gates."""
    roll_back(world, switch=False)
    world.script.sent.clear()
    world.script.says("version", {"program": "older"})
    target = {"kept": "r1", "rejected": [], "who": "ada", "why": "x", "switch": False}
    arguments: dict[str, Any] = {
        "settings": worlds.settings_with(), "target": target, "verification": None,
        "gateway_text": no_text,
    }  # fmt: skip
    world.run(rollback_steps.roll_back, **arguments)
    installing = world.script.sent[1].command
    assert "lease acquire" in installing
    assert "mv -f" in installing


WAS, ASKED = '{"a": "of the release before"}', '{"a": "of the settings"}'
TAKEN_UP = {"changed": True, "former": WAS}


def configurations(world: PyinfraWorld) -> list[Any]:
    """What the gateway service was to be configured with, in order."""
    return [
        sent.spec["configuration"]
        for sent in world.script.sent
        if sent.command.endswith(("gateway configure", "gateway activate"))
    ]


def text_of(held: Hold | None) -> str | None:
    return f'{{"a": "{held.served_model_name}"}}' if held is not None else ASKED


HELD = '{"a": "old"}'


def test_a_rollback_gives_the_gateway_what_is_held(world: PyinfraWorld, told: Path) -> None:
    jobs_end(world, {"state": "done", "result": {"release": "r1", "from": "r2"}})
    world.script.says("gateway configure", TAKEN_UP)
    assert roll_back(world, {"model": "new"}, gateway_text=text_of)
    commands = world.script.commands()
    # The release serves by then, and clients have not been asked yet.
    assert commands[-3:] == ["job status", "gateway configure", "verify"]
    assert configurations(world) == [HELD]
    sent = next(one for one in world.script.sent if one.command.endswith("gateway configure"))
    assert sent.spec == {
        "unit": "llm-gateway.service", "configuration": HELD, "stop_seconds": 120,
    }  # fmt: skip


def test_a_rollback_that_was_killed_before_that_is_run_again(
    world: PyinfraWorld, told: Path
) -> None:
    """The host runs it by then, and its gateway has the name of what it ran before."""
    world.script.says("gateway configure", TAKEN_UP)
    assert roll_back(world, switch=False, gateway_text=text_of)
    assert world.script.commands()[-2:] == ["hold begin", "gateway configure"]
    assert configurations(world) == [HELD]
    assert said(told)["result"] == {"release": "r1", "changed": False}
    world.script.says("gateway configure", refusal("no"))
    assert not roll_back(world, switch=False, gateway_text=text_of)


def test_a_gateway_that_does_not_take_it_up_undoes_the_rollback(
    world: PyinfraWorld, told: Path
) -> None:
    jobs_end(world, {"state": "done", "result": {"release": "r1", "from": "r2"}}, {"state": "done"})
    world.script.says("gateway configure", refusal("it refuses its configuration"))
    assert not roll_back(world, {"model": "new"}, gateway_text=text_of)
    commands = world.script.commands()
    assert commands[commands.index("gateway configure") + 1 :] == [
        "hold end", "job start", "job status",
    ]  # fmt: skip
    # The host itself has taken it back: nothing is to be restored.
    assert configurations(world) == [HELD]
    assert said(told)["back_to"] == "r2"
    assert "the gateway service did not take it up" in said(told)["error"]["what"]


def test_a_rollback_that_is_undone_gives_the_gateway_back_what_it_had(
    world: PyinfraWorld, told: Path
) -> None:
    jobs_end(world, {"state": "done", "result": {"release": "r1", "from": "r2"}}, {"state": "done"})
    world.script.says("gateway configure", TAKEN_UP, {"changed": True, "former": HELD})
    world.script.says("verify", refusal("no"))
    assert not roll_back(world, {"model": "new"}, gateway_text=text_of)
    assert configurations(world) == [HELD, WAS]
    commands = world.script.commands()
    assert commands[commands.index("verify") :] == [
        "verify", "hold end", "job start", "job status", "gateway configure",
    ]  # fmt: skip
    assert said(told)["back_to"] == "r2"


def test_the_way_back_of_a_go_live_gives_the_gateway_back_what_it_had(
    world: PyinfraWorld, told: Path
) -> None:
    world.script.says("gateway activate", {"environment": "x", "former": WAS})
    verified_badly(world, WENT_LIVE, {"state": "done", "result": {"release": "r1"}})
    assert configurations(world) == [plan_of(engine=NEW).gateway_text, WAS]
    assert world.script.commands()[-1] == "gateway configure"
    assert said(told)["back_to"] == "r1"


def test_a_last_verification_gives_the_gateway_back_what_it_had(
    world: PyinfraWorld, told: Path
) -> None:
    """Where the gateway is a step of its own, as with another environment."""
    jobs_end(world, WENT_LIVE, {"state": "done", "result": {"release": "r1"}})
    world.script.says("gateway activate", {"environment": "x", "former": WAS})
    plan = replace(plan_of(engine=NEW), gateway_activate="another environment")
    assert not plan.gateway_at_go_live
    assert world.run(engine_steps.go_live, plan=plan, verification=None)
    assert configurations(world) == []
    assert world.run(gateway_steps.activate_service, plan=plan)
    world.script.says("verify", refusal("no"))
    arguments: dict[str, Any] = {"plan": plan, "verification": {}}
    assert not world.run(service_checks.verify_service, **arguments)
    assert configurations(world) == [plan.gateway_text, WAS]
    assert said(told)["back_to"] == "r1"


def test_a_gateway_that_does_not_come_back_is_told(world: PyinfraWorld, told: Path) -> None:
    world.script.says("gateway activate", {"environment": "x", "former": WAS})
    world.script.says("gateway configure", refusal("it did not become ready"))
    verified_badly(world, WENT_LIVE, {"state": "done", "result": {"release": "r1"}})
    assert said(told)["back_to"] is None
    assert "r1 serves again, and the gateway service is not" in said(told)["error"]["why"]


def test_an_engine_that_does_not_come_back_leaves_the_gateway(
    world: PyinfraWorld, told: Path
) -> None:
    """It names what serves, or is to be mended by the next deploy."""
    world.script.says("gateway activate", {"environment": "x", "former": WAS})
    verified_badly(world, WENT_LIVE, {"state": "failed", "error": {"what": "no"}})
    assert len(configurations(world)) == 1


def test_a_gateway_that_was_not_given_another_is_left_alone(
    world: PyinfraWorld, told: Path
) -> None:
    text = plan_of(engine=NEW).gateway_text
    world.script.says("gateway activate", {"environment": "x", "former": text})
    verified_badly(world, WENT_LIVE, {"state": "done", "result": {"release": "r1"}})
    assert len(configurations(world)) == 1
