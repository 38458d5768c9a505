"""What a run that died, or a hand, has left on a host that is otherwise as it should be."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.deploys.session import with_dead_run
from pyinfra_deploy.operations import run as runs
from pyinfra_deploy.planning import host_plan
from tests.unit.planning import worlds


def reasons(change: dict[str, Any]) -> list[str]:
    settings = worlds.settings_with()
    artefacts = worlds.artefacts_with(settings)
    snapshot = with_dead_run(worlds.merged(worlds.converged(settings, artefacts), change))
    plan = host_plan.plan_host("gpu01", worlds.ALL, settings, snapshot, artefacts)
    assert not plan.refused
    assert plan.changes is bool(plan.reasons())
    return plan.reasons()


def lease(**change: Any) -> dict[str, Any]:
    return {**runs.this_run().as_spec(), "run": "earlier", "owner": "alice@desk", **change}


def test_the_lease_of_a_dead_run_of_this_machine_is_cleared() -> None:
    found = reasons({"state": {"lease": lease(pid_start=1)}})
    assert found == ["clear the lease of a run that ended (alice@desk)"]


@pytest.mark.parametrize("held", [None, lease(), lease(machine="desk:m:b"), [], {}, "x"])
def test_no_other_lease_is_a_reason_to_change_a_host(held: Any) -> None:
    assert reasons({"state": {"lease": {"=": held} if held is not None else None}}) == []


@pytest.mark.parametrize("there", [{}, {"cut": True}])
def test_a_live_release_that_was_removed_is_staged_and_started_again(there: Any) -> None:
    settings = worlds.settings_with()
    release = worlds.release_of(settings, worlds.artefacts_with(settings))
    releases = {release: {"error": "not JSON"}} if there else {}
    found = reasons({"engines": {"main": {"releases": {"=": releases}}}})
    assert f"go live: release {release} is no longer on the host in full" in found


def test_a_link_to_another_place_is_told_by_where_it_points() -> None:
    found = reasons({"engines": {"main": {"current": "/etc"}}})
    assert any(reason.endswith("instead of /etc") for reason in found)
