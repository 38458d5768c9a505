"""A check that fails on a host where no release went live, as on a gateway of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.operations import gateway_steps, service_checks
from tests.fakes.pyinfra_host import refusal
from tests.unit.operations import test_rollout_steps as steps
from tests.unit.operations.test_engine_steps import NEW, plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.pyinfra_host import PyinfraWorld

told = steps.told
FORMER = '{"a": "of the release before"}'


def checked_badly(world: PyinfraWorld, activated: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What the gateway service was to run, in order. activated: its answer; None: not asked."""
    plan = replace(plan_of(engine=NEW), gateway_activate="its configuration differs")
    if activated is not None:
        world.script.says("gateway activate", activated)
        assert world.run(gateway_steps.activate_service, plan=plan)
    world.script.says("verify", refusal("check 'answer' failed"))
    arguments: dict[str, Any] = {"plan": plan, "verification": {}}
    assert not world.run(service_checks.verify_service, **arguments)
    gateway = ("gateway configure", "gateway activate")
    return [sent.spec for sent in world.script.sent if sent.command.endswith(gateway)]


@pytest.mark.parametrize("before", ["gateway-1", "gateway-0"])
def test_what_was_new_is_taken_back_and_told(world: PyinfraWorld, told: Path, before: str) -> None:
    activated = {"environment": "gateway-1", "previous": before, "former": FORMER}
    _, back = checked_badly(world, activated)
    assert back["configuration"] == FORMER
    assert back.get("environment") == (before if before == "gateway-0" else None)
    said = steps.said(told)
    assert said["gateway"] == "back"
    assert "was taken back" in said["error"]["what"]


def test_without_anything_to_take_back_it_runs_on_and_that_is_told(
    world: PyinfraWorld, told: Path
) -> None:
    assert checked_badly(world, None) == []
    assert steps.said(told)["gateway"] == "runs"


def test_a_way_back_that_is_refused_is_told(world: PyinfraWorld, told: Path) -> None:
    world.script.says("gateway configure", refusal("it did not become ready"))
    checked_badly(world, {"environment": "x", "previous": "x", "former": FORMER})
    assert steps.said(told)["gateway"] == "runs"


def test_a_deploy_of_its_own_takes_nothing_back(world: PyinfraWorld) -> None:
    activated = {"environment": "x", "previous": "x", "former": FORMER}
    assert len(checked_badly(world, activated)) == 1
