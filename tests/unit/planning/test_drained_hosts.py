"""A host that was drained by hand is said to be."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.planning import host_plan
from pyinfra_deploy.planning.drain import BY_GO_LIVE
from tests.unit.planning import worlds


def findings(drained: Any) -> list[str]:
    snapshot = worlds.untouched()
    snapshot["engines"]["main"]["drained"] = drained
    settings = worlds.settings_with({})
    plan = host_plan.plan_host(
        "gpu01", worlds.ALL, settings, snapshot, worlds.artefacts_with(settings)
    )
    assert not plan.refused
    return [str(found) for found in plan.findings if found.id == "engine.drained"]


def test_who_when_why_and_how_to_undo_it() -> None:
    (said,) = findings({"by": "ada", "reason": "slot 3 is repaired", "since": 1_800_000_000})
    for words in ("2027-01-15 08:00 UTC", "by ada", "slot 3 is repaired", "rm /run/llm/drain/main"):
        assert words in said


@pytest.mark.parametrize(
    ("stopped", "who"),
    [
        ({"who": "ada", "why": "smoke", "when": "2026-11-30T08:00:00Z"}, "by ada: smoke"),
        ({"error": "is not JSON"}, "by somebody who left no name"),
    ],
)
def test_an_engine_that_was_stopped_by_hand_is_not_started(stopped: Any, who: str) -> None:
    """It is inactive, which would be a reason to go live."""
    settings = worlds.settings_with({})
    snapshot = worlds.converged(settings, worlds.artefacts_with(settings))
    snapshot["units"]["llm-engine@main.service"] = worlds.unit(active="inactive")
    snapshot["engines"]["main"]["stopped"] = stopped
    plan = host_plan.plan_host(
        "gpu01", worlds.ALL, settings, snapshot, worlds.artefacts_with(settings)
    )
    (said,) = map(str, plan.refused)
    for words in ("stopped it by hand", who, "put-in gpu01", "--exclude gpu01"):
        assert words in said
    assert plan.go_live == ""


@pytest.mark.parametrize("since", [None, "yesterday", 1e30, True])
def test_what_nobody_recorded(since: Any) -> None:
    (said,) = findings({"by": None, "reason": None, "since": since})
    assert "Since an unknown time, by somebody who left no name: no reason is recorded" in said


@pytest.mark.parametrize("drained", [None, {"by": BY_GO_LIVE, "reason": "r", "since": 1}])
def test_a_host_that_serves_or_goes_live_is_not(drained: Any) -> None:
    assert findings(drained) == []


def test_the_go_lives_name_is_the_hosts_own() -> None:
    from fleet_host import engine

    assert engine.DRAINED_BY_GO_LIVE == BY_GO_LIVE
