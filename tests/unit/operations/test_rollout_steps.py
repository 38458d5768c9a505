"""A deploy as a step of a rollout, and a rollback: whose run it is, gates, what is told, the way
back of a check after the go-live."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.operations import (
    engine_steps,
    gate,
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
    from collections.abc import Iterator
    from pathlib import Path

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


def roll_back(world: PyinfraWorld, verification: Any = None, *, switch: bool = True) -> bool:
    target = {"kept": "r1", "rejected": ["r2"], "who": "ada", "why": "slow", "switch": switch}
    world.script.says("hold begin", {"hold": {"served_model_name": "old"}})
    world.script.says("version", {"program": packing.host_program_digest()})
    return world.run(
        rollback_steps.roll_back,
        settings=worlds.settings_with(),
        target=target,
        verification=verification,
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
    assert said(told)["error"]["what"] == "no"


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
    arguments: dict[str, Any] = {"settings": settings, "target": target, "verification": None}
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
    }  # fmt: skip
    world.run(rollback_steps.roll_back, **arguments)
    installing = world.script.sent[1].command
    assert "lease acquire" in installing
    assert "mv -f" in installing
