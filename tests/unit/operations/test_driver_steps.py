"""The driver on a host: the job, the reboot, the proof, and the gate that no second host passes."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import pytest
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.operation import add_op
from pyinfra.api.operations import run_ops

from pyinfra_deploy.operations import driver_steps, engine_steps, gate, host_steps
from pyinfra_deploy.operations.order import keep_inventory_order
from pyinfra_deploy.planning import host_plan
from pyinfra_deploy.planning.driver_install import DriverStep
from tests.fakes.pyinfra_host import refusal
from tests.unit.planning import worlds

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan
    from tests.fakes.pyinfra_host import PyinfraWorld

HOSTS = ("gpu01", "gpu02", "gpu03")
STEP = DriverStep(("cuda-drivers-580",), ("cuda-drivers-580",), "580.105.08")
FAILED = {"state": "failed", "error": {"what": "the disk is full", "why": "apt"}}
DONE: dict[str, Any] = {"state": "done", "result": {}}
VERIFIED = {"driver": "580.105.08", "gpus": 8}


@pytest.fixture(autouse=True)
def _fresh(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pyinfra")


def plan_of(*, serving: bool = True) -> HostPlan:
    settings = worlds.settings_with({"gpu_driver": "install"})
    artefacts = worlds.artefacts_with(settings)
    snapshot = worlds.converged(settings, artefacts) if serving else worlds.untouched()
    return host_plan.plan_host("gpu01", worlds.ALL, settings, snapshot, artefacts, None, None, STEP)


def installed(*, reboot: bool = True) -> dict[str, Any]:
    result = {"module": "580.105.08", "loaded": None, "reboot": reboot, "boot_id": "before"}
    return {"state": "done", "result": result}


def works(world: PyinfraWorld, host: str = "gpu01", *, reboot: bool = True) -> None:
    world.script.says("job status", installed(reboot=reboot), DONE, host=host)
    world.script.says(
        "driver boot",
        {"boot_id": "before"},
        ConnectionResetError("gone"),
        refusal("the disk is not mounted yet"),
        {"boot_id": "after"},
        host=host,
    )
    world.script.says("driver verify", VERIFIED, host=host)


def specs(world: PyinfraWorld, command: str) -> list[dict[str, Any]]:
    return [sent.spec for sent in world.script.sent if sent.command.endswith(command)]


def test_a_host_that_serves_is_rebooted_and_serves_again(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    works(world)
    plan = plan_of()
    assert world.run(driver_steps.install_driver, plan=plan)
    assert world.script.commands() == [
        "job start", "job status", "driver reboot", *["driver boot"] * 4, "driver verify",
        "job start", "job status",
    ]  # fmt: skip
    install, again = specs(world, "job start")
    assert (install["kind"], again["kind"]) == ("driver", "golive")
    assert install["spec"]["packages"] == ["cuda-drivers-580"]
    # Drained as the release that serves, and switched back to the same one.
    assert install["spec"]["go_live"] == again["spec"]
    assert plan.driver is not None
    assert plan.driver.live is not None
    assert again["spec"]["release"] == plan.driver.live[0]
    assert specs(world, "driver reboot") == [{"boot_id": "before", "module": "580.105.08"}]
    assert specs(world, "driver verify") == [{"module": "580.105.08"}]
    assert "580.105.08 runs 8 GPUs" in caplog.text


def test_a_host_that_serves_nothing_is_not_drained_nor_gone_live(world: PyinfraWorld) -> None:
    works(world)
    assert world.run(driver_steps.install_driver, plan=plan_of(serving=False))
    (install,) = specs(world, "job start")
    assert install["spec"]["go_live"] is None


def test_no_reboot_where_none_is_owed(world: PyinfraWorld) -> None:
    works(world, reboot=False)
    assert world.run(driver_steps.install_driver, plan=plan_of())
    assert "driver reboot" not in world.script.commands()


def test_a_host_that_does_not_come_back_says_what_to_do(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    works(world)
    world.script.says("driver boot", ConnectionResetError("gone"))
    assert not world.run(driver_steps.install_driver, plan=plan_of())
    assert "it did not come back" in caplog.text
    assert "look at its console" in caplog.text
    assert "run the same command again" in caplog.text


def test_a_host_that_stays_up_says_so(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    works(world)
    world.script.says("driver boot", {"boot_id": "before"})
    assert not world.run(driver_steps.install_driver, plan=plan_of())
    assert "was asked to reboot and did not" in caplog.text


@pytest.mark.parametrize("command", ["job start", "driver reboot", "driver verify"])
def test_a_refusal_on_the_way_closes_the_gate(world: PyinfraWorld, command: str) -> None:
    works(world)
    world.script.says(command, refusal("no"))
    assert not world.run(driver_steps.install_driver, plan=plan_of())
    assert world.script.commands()[-1] == command
    assert gate.closed_by(world.state) == "@fake/gpu01"


def test_an_engine_that_does_not_come_back_closes_the_gate(world: PyinfraWorld) -> None:
    works(world)
    world.script.says("job status", installed(), FAILED)
    assert not world.run(driver_steps.install_driver, plan=plan_of())
    assert gate.closed_by(world.state) == "@fake/gpu01"


@pytest.mark.parametrize("failing", [None, *HOSTS])
def test_never_two_hosts_are_down(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture, failing: str | None
) -> None:
    for host in HOSTS:
        works(world, host)
        if host == failing:
            world.script.says("job status", FAILED, host=host)
    keep_inventory_order(world.state)
    add_op(world.state, driver_steps.install_driver, plan=plan_of(), _serial=True)
    with contextlib.suppress(PyinfraError):  # "No hosts remaining!" where all of them have failed
        run_ops(world.state)
    order = [sent.host for sent in world.script.sent]
    touched = list(dict.fromkeys(order))
    assert order == sorted(order, key=touched.index), "two hosts were down at the same time"
    assert touched == list(HOSTS[: HOSTS.index(failing) + 1] if failing else HOSTS)
    for host in set(HOSTS) - set(touched):
        assert f"[@fake/{host}] driver: left alone" in caplog.text


def test_a_go_live_after_a_failed_driver_is_left_alone(world: PyinfraWorld) -> None:
    works(world)
    world.script.says("job status", FAILED)
    world.run(driver_steps.install_driver, plan=plan_of())
    before = len(world.script.sent)
    other = worlds.settings_with({"engine": {"args": {"max-model-len": 8192}}})
    plan = host_plan.plan_host(
        "gpu02", worlds.ALL, other, worlds.untouched(), worlds.artefacts_with(other)
    )
    assert not world.run(engine_steps.go_live, host="gpu02", plan=plan, verification=None)
    assert len(world.script.sent) == before


def test_a_run_with_a_driver_ends_as_not_finished(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    assert not world.run(host_steps.not_finished, why="run again for the rest")
    assert "run again for the rest" in caplog.text
