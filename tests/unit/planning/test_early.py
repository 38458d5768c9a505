"""What is built on all hosts before the first of them is switched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyinfra_deploy.planning import host_plan
from pyinfra_deploy.planning.early import built_early
from tests.unit.planning import worlds


def planned(**changes: Any) -> host_plan.HostPlan:
    """A host that serves, with settings that ask for another model."""
    before = worlds.settings_with()
    after = worlds.settings_with({"model": {"id": "Qwen/Qwen3-14B"}})
    snapshot = worlds.converged(before, worlds.artefacts_with(before)) | changes
    return host_plan.plan_host("gpu01", worlds.ALL, after, snapshot, worlds.artefacts_with(after))


def test_a_model_is_pulled_while_the_host_waits() -> None:
    plan = planned()
    assert plan.pull is not None
    assert built_early(plan)
    assert built_early(replace(plan, ended_run="ada"))
    # The gateway is told the new model's name with the go-live.
    assert plan.gateway_activate
    assert plan.gateway_at_go_live


@pytest.mark.parametrize(
    "change",
    [
        {"program": True},
        {"packages": ("gcc",)},
        {"base": True},
        {"map_count": 1_048_576},
        {"nginx": "it differs"},
        {"gateway_activate": "another environment"},
        {"serving": False},
        {"pull": None},
    ],
)
def test_a_host_on_which_anything_else_changes_is_left_to_its_turn(change: dict[str, Any]) -> None:
    assert not built_early(replace(planned(), **change))
