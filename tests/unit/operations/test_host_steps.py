"""Steps on the ground of a host: what is sent, and what never shows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from pyinfra.api.exceptions import PyinfraError
from pyinfra.context import ctx_host, ctx_state

from pyinfra_deploy.operations import host_steps, lease
from pyinfra_deploy.operations.run import this_run
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.wanted import Environment
from pyinfra_deploy.settings.secret import plain_secret
from tests.fakes.pyinfra_host import PROGRAM, ROOT, refusal
from tests.unit.planning import worlds

if TYPE_CHECKING:
    from tests.fakes.pyinfra_host import PyinfraWorld


@pytest.fixture(autouse=True)
def _messages(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pyinfra")


def test_nothing_to_change_sends_nothing(world: PyinfraWorld) -> None:
    assert world.run(host_steps.nothing_to_change, summary="as it should be")
    assert world.script.sent == []


def test_a_secret_is_in_stdin_alone(world: PyinfraWorld, caplog: pytest.LogCaptureFixture) -> None:
    secret = plain_secret("hunter2")
    world.script.says("credential write", refusal("the disk is full"))
    assert not world.run(
        host_steps.put_secret, secret_name="hub-token", secret=secret, llm_root=ROOT
    )
    (sent,) = world.script.sent
    assert sent.spec == {"name": "hub-token", "secret": "hunter2"}
    rest = {key: value for key, value in sent.arguments.items() if key != "_stdin"}
    assert "hunter2" not in f"{sent.command} {rest} {caplog.text}"
    assert not sent.printed


def test_a_secret_is_fetched_when_the_step_runs_and_not_before(world: PyinfraWorld) -> None:
    class Unavailable:
        def reveal(self) -> str:
            raise AssertionError("fetched too early")

    unavailable: Any = Unavailable()
    with ctx_state.use(world.state), ctx_host.use(world.host()):
        commands = list(
            host_steps.put_secret._inner(
                secret_name="x", secret=unavailable, llm_root=ROOT
            )
        )  # fmt: skip
    assert len(commands) == 1
    assert world.script.sent == []


@pytest.mark.parametrize(("answer", "ok"), [({"changed": True}, True), (refusal("no"), False)])
def test_a_command_of_the_program(world: PyinfraWorld, answer: Any, ok: bool) -> None:
    world.script.says("kernel raise-map-count", answer)
    spec = {"minimum": 1048576}
    arguments: dict[str, Any] = {
        "step": "kernel",
        "command": "kernel raise-map-count",
        "spec": spec,
    }
    assert world.run(host_steps.call_program, llm_root=ROOT, **arguments) is ok
    assert world.script.sent[0].command == f"{PROGRAM} kernel raise-map-count"
    assert world.script.sent[0].spec == spec


@pytest.mark.parametrize(
    ("status", "ok"), [({"state": "done"}, True), ({"state": "failed", "error": {}}, False)]
)
def test_an_environment_is_a_job_by_its_own_name(
    world: PyinfraWorld, status: Any, ok: bool
) -> None:
    environment = Environment(
        "vLLM 0.33.0", "vllm-0.33.0-1f2e", f"{ROOT}/runtimes/x", "d", {"p": 1}
    )
    world.script.says("job status", status)
    assert world.run(host_steps.build_environment, environment=environment, llm_root=ROOT) is ok
    assert world.script.sent[0].spec == {
        "kind": "environment",
        "id": "vllm-0.33.0-1f2e",
        "spec": {"p": 1},
        "who": this_run().owner,
    }


def test_the_lease_is_taken_as_planned_and_given_back(world: PyinfraWorld) -> None:
    settings = worlds.settings_with()
    artefacts = worlds.artefacts_with(settings)
    from pyinfra_deploy.planning import host_plan

    snapshot = worlds.converged(settings, artefacts)
    plan = host_plan.plan_host("gpu01", worlds.ALL, settings, snapshot, artefacts)
    assert world.run(host_steps.take_lease, plan=plan)
    assert world.script.sent[0].spec["generation_seen"] == 4
    assert world.run(host_steps.give_lease_back)
    assert world.script.commands() == ["lease acquire", "lease release"]
    assert lease._held == {}


def test_a_refused_host_is_told_why_and_dropped_and_the_others_stay(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    finding = Finding(
        "os.unsupported", "refuse", "gpu01", "operating system", "not one of ours", "install one",
        evidence="ID=rocky", source="os-release(5)",
    )  # fmt: skip
    host_steps.refuse(world.host(), (finding,))
    for part in (
        "refuse: gpu01: operating system: not one of ours [os.unsupported]",
        "seen:   ID=rocky",
        "fix:    install one",
        "source: os-release(5)",
    ):
        assert part in caplog.text
    assert world.host() in world.state.failed_hosts
    assert {host.name for host in world.state.active_hosts} == {"@fake/gpu02", "@fake/gpu03"}
    assert world.script.sent == []


def test_when_every_host_is_refused_pyinfra_ends(world: PyinfraWorld) -> None:
    finding = Finding("x", "refuse", "h", "s", "m", "f")
    host_steps.refuse(world.host("gpu01"), (finding,))
    host_steps.refuse(world.host("gpu02"), (finding,))
    with pytest.raises(PyinfraError, match="No hosts remaining"):
        host_steps.refuse(world.host("gpu03"), (finding,))
