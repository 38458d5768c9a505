"""Pull, stage, switch: what a host is told, and the gate that no second host passes."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import pytest
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.operation import add_op
from pyinfra.api.operations import run_ops

from pyinfra_deploy.deploys.verify import verification_for
from pyinfra_deploy.operations import engine_steps, gate, go_live, service_checks
from pyinfra_deploy.operations.order import keep_inventory_order
from pyinfra_deploy.planning import host_plan
from tests.fakes.pyinfra_host import ROOT, refusal
from tests.unit.planning import worlds

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan
    from tests.fakes.pyinfra_host import PyinfraWorld

HOSTS = ("gpu01", "gpu02", "gpu03")
FAILED = {"state": "failed", "error": {"what": "release x did not go live", "why": "it died"}}


@pytest.fixture(autouse=True)
def _fresh(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, logger="pyinfra")
    monkeypatch.setattr(engine_steps, "_pulled", {})


def plan_of(serving: bool = True, engine: Any = None) -> HostPlan:
    """A host that serves and is to run another release, or one that has nothing yet."""
    before, after = worlds.settings_with(), worlds.settings_with({"engine": engine or {}})
    start = worlds.converged(before, worlds.artefacts_with(before))
    snapshot = start if serving else worlds.untouched()
    return host_plan.plan_host("gpu01", worlds.ALL, after, snapshot, worlds.artefacts_with(after))


NEW = {"args": {"max-model-len": 8192}}


def jobs_end(world: PyinfraWorld, *statuses: Any, host: str = "gpu01") -> None:
    world.script.says("job status", *statuses, host=host)


def test_a_pull_is_a_job_named_by_model_and_revision(world: PyinfraWorld) -> None:
    jobs_end(world, {"state": "done", "result": {"model_digest": "d1"}})
    plan = plan_of(serving=False)
    assert world.run(engine_steps.pull_model, plan=plan, job_id="Qwen--Qwen3-32B--master")
    spec = world.script.sent[0].spec
    assert (spec["kind"], spec["id"]) == ("pull", "Qwen--Qwen3-32B--master")
    assert spec["spec"] == plan.pull


def test_a_failed_pull_fails_the_host(world: PyinfraWorld) -> None:
    jobs_end(world, {"state": "failed", "error": {"what": "the hub is gone"}})
    assert not world.run(engine_steps.pull_model, plan=plan_of(serving=False), job_id="x")


def test_a_release_is_staged_bound_and_switched_to(world: PyinfraWorld) -> None:
    plan = plan_of(engine=NEW)
    jobs_end(world, {"state": "done", "result": {}})
    assert world.run(engine_steps.go_live, plan=plan, verification=None)
    assert world.script.commands() == [
        "release review",
        "release stage",
        "release bind",
        "job start",
        "job status",
        # The service's configuration has the model's length in it: before the next host's turn.
        "gateway activate",
    ]
    _, stage, bind, start, _, _ = [sent.spec for sent in world.script.sent]
    assert plan.release is not None
    identity = plan.release.id_with(worlds.MODEL_DIGEST)
    assert stage == {
        "engine": "main",
        "id": identity,
        "release": {
            "runtime": plan.release.runtime.path,
            "runtime_digest": plan.release.runtime.digest,
            "model": f"{ROOT}/models/Qwen--Qwen3-32B/master",
            "model_digest": worlds.MODEL_DIGEST,
            "served_model_name": "Qwen/Qwen3-32B",
            "vllm": "0.33.0",
        },
        "config_yaml": plan.release.configuration,
        "env": 'A="1"\n',
    }
    assert bind == {"engine": "main", "id": identity, "binding": "", "placement": ""}
    assert (start["kind"], start["id"]) == ("golive", "main")
    job = start["spec"]
    assert job["release"] == identity
    assert job["unit"] == "llm-engine@main.service"
    assert job["probe"]["model"] == "Qwen/Qwen3-32B"
    assert (job["start_timeout_seconds"], job["stall_timeout_seconds"]) == (None, 600)
    assert job["proof"] == {
        "device": "cuda", "gpus": [], "trust_remote_code": False, "timeout_seconds": 900,
    }  # fmt: skip
    assert job["fitness"] == {
        "trust_remote_code": False, "chat_template": None, "tools": False, "timeout_seconds": 900,
    }  # fmt: skip
    assert (job["drain_seconds"], job["enable"], job["ask_parser"]) == (120, True, True)


@pytest.mark.parametrize(
    ("model", "args", "expected"),
    [
        ({}, {}, {"chat_template": None, "tools": False, "trust_remote_code": False}),
        (
            {"accept": ["code"]},
            {
                "chat-template": "/srv/chat.jinja",
                "enable-auto-tool-choice": True,
                "tool-call-parser": "hermes",
                "trust-remote-code": True,
                "tokenizer-mode": "slow",
            },
            {"chat_template": "/srv/chat.jinja", "tools": True, "trust_remote_code": True},
        ),
        ({"fitness": "off"}, {}, None),
        ({}, {"tokenizer-mode": "mistral"}, None),
        ({}, {"skip-tokenizer-init": True}, None),
        ({}, {"tokenizer": "other/model"}, None),
    ],
)
def test_which_tokenizer_is_examined_and_how(
    model: dict[str, Any], args: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    settings = worlds.settings_with({"model": model, "engine": {"args": args}})
    spec = go_live.fitness_spec(settings)
    assert spec == (None if expected is None else {**expected, "timeout_seconds": 900})


def test_what_is_doubtful_of_a_tokenizer_is_said_where_the_operator_looks(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    jobs_end(world, {"state": "done", "result": {"warnings": ["tokenizer: it folds case"]}})
    assert world.run(engine_steps.go_live, plan=plan_of(engine=NEW), verification=None)
    assert "go-live: tokenizer: it folds case" in caplog.text


def test_what_this_run_has_pulled_is_newer_than_what_the_plan_saw(world: PyinfraWorld) -> None:
    plan = plan_of(serving=False)
    jobs_end(world, {"state": "done", "result": {"model_digest": "pulled"}})
    world.run(engine_steps.pull_model, plan=plan, job_id="x")
    assert world.run(engine_steps.go_live, plan=plan, verification=None)
    assert plan.release is not None
    (stage,) = [s.spec for s in world.script.sent if s.command.endswith("release stage")]
    assert stage["id"] == plan.release.id_with("pulled")
    assert stage["release"]["model_digest"] == "pulled"


@pytest.mark.parametrize("command", ["release stage", "release bind", "job start"])
def test_a_refusal_on_the_way_goes_no_further(world: PyinfraWorld, command: str) -> None:
    world.script.says(command, refusal("no"))
    assert not world.run(engine_steps.go_live, plan=plan_of(engine=NEW), verification=None)
    assert world.script.commands()[-1] == command
    assert gate.closed_by(world.state) == "@fake/gpu01"


def test_a_verification_is_part_of_the_go_live(world: PyinfraWorld) -> None:
    plan = plan_of(engine=NEW)
    jobs_end(world, {"state": "done"})
    world.script.says("verify", refusal("the service is open"))
    verification = verification_for(plan)
    assert not world.run(engine_steps.go_live, plan=plan, verification=verification)
    assert world.script.sent[-1].spec == {
        "https_port": 443,
        "http_port": 80,
        "server_name": "llm.example.com",
        "model": "Qwen/Qwen3-32B",
        "engine": "main",
        "burst": {"requests": 160, "limits": [[600, 120], [600, 120]]},
        "vhost": {"cors_origin": None, "max_body_mb": 16},
        "full": {"counts_tokens": True, "max_body_bytes": 16 << 20},
    }
    assert gate.closed_by(world.state) == "@fake/gpu01"


def test_checks_are_told_one_by_one(world: PyinfraWorld, caplog: pytest.LogCaptureFixture) -> None:
    checks = [{"name": "models", "figures": {"seconds": 0.1}}, {"name": "no key", "figures": {}}]
    world.script.says("verify", {"checks": checks})
    arguments: dict[str, Any] = {"plan": plan_of(), "verification": {}}
    assert world.run(service_checks.verify_service, **arguments)
    assert "verify: models: {'seconds': 0.1}" in caplog.text
    assert "verify: no key: as it should be" in caplog.text
    world.script.says("verify", refusal("no"))
    assert not world.run(service_checks.verify_service, **arguments)


def go_live_on_all(world: PyinfraWorld, plan: HostPlan) -> list[str]:
    """As pyinfra runs it host by host; the hosts in that order."""
    keep_inventory_order(world.state)
    add_op(world.state, engine_steps.go_live, plan=plan, verification=None, _serial=True)
    with contextlib.suppress(PyinfraError):  # "No hosts remaining!" where all of them have failed
        run_ops(world.state)
    order = [sent.host for sent in world.script.sent]
    hosts = list(dict.fromkeys(order))
    assert order == sorted(order, key=hosts.index), "hosts were switched at the same time"
    return hosts


@pytest.mark.parametrize("failing", HOSTS)
def test_after_a_failure_no_other_host_is_switched(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    for host in HOSTS:
        jobs_end(world, FAILED if host == failing else {"state": "done"}, host=host)
    switched = go_live_on_all(world, plan_of(engine=NEW))
    assert switched == list(HOSTS[: HOSTS.index(failing) + 1])
    left_alone = set(HOSTS) - set(switched)
    for host in left_alone:
        said = f"[@fake/{host}] left alone: the go-live on @fake/{failing} failed; this host still"
        assert said in caplog.text
    assert {host.name for host in world.state.failed_hosts} == {
        f"@fake/{host}" for host in {failing, *left_alone}
    }


def test_while_all_is_well_every_host_is_switched_in_its_turn(world: PyinfraWorld) -> None:
    for host in HOSTS:
        jobs_end(world, {"state": "running"}, {"state": "done"}, host=host)
    assert go_live_on_all(world, plan_of(engine=NEW)) == list(HOSTS)
    assert world.state.failed_hosts == set()


def test_a_run_of_its_own_has_a_gate_of_its_own(
    world: PyinfraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.fakes.pyinfra_host import make_world

    gate.close(world.state, world.host("gpu02"))
    gate.close(world.state, world.host("gpu01"))
    assert gate.closed_by(world.state) == "@fake/gpu02"
    assert gate.closed_by(make_world(monkeypatch, "gpu01").state) is None


def test_hosts_go_in_the_inventorys_order_also_after_some_have_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.fakes.pyinfra_host import make_world

    names = [f"gpu{number}" for number in (9, 10, 1, 4, 2, 8, 3, 7, 5, 6)]
    world = make_world(monkeypatch, *names)
    keep_inventory_order(world.state)
    world.state.fail_hosts({world.host("gpu4"), world.host("gpu9")})
    expected = [f"@fake/{name}" for name in names if name not in ("gpu4", "gpu9")]
    assert [host.name for host in world.state.inventory.get_active_hosts()] == expected
