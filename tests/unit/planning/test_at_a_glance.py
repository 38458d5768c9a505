"""A host at a glance."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from pyinfra_deploy.planning.at_a_glance import glance
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.status_commands import in_lines
from tests.unit.planning import worlds

UNIT, GOLIVE = "llm-engine@main.service", "llm-golive@main.service"


def world() -> dict[str, Any]:
    settings = worlds.settings_with()
    found = worlds.converged(settings, worlds.artefacts_with(settings))
    end = worlds.NOW + datetime.timedelta(days=400)
    found["gateway"]["certificate"]["not_after"] = f"{end:%b %d %H:%M:%S %Y} GMT"
    engine = found["engines"]["main"]
    engine["socket"] = True
    engine["releases"][engine["current"]]["model"] = "/srv/llm/models/Qwen--Qwen3-32B/master"
    return found


def seen(snapshot: dict[str, Any], *findings: Finding) -> dict[str, Any]:
    return glance(worlds.settings_with(), worlds.ALL, snapshot, findings, worlds.NOW)


def about(identity: str, severity: Any) -> Finding:
    return Finding(identity, severity, "gpu01", "GPU 3", "is not well", "mend it")


def test_a_host_that_is_well() -> None:
    found = seen(world())
    assert found["state"] == "good"
    assert found["engine"] == {"text": "serves", "state": "good"}
    assert found["drain"] == {"text": "in service", "state": "good"}
    assert found["certificate"]["text"].endswith("(400 days)")
    assert found["model"]["text"].startswith("Qwen--Qwen3-32B: whole, verified ")
    assert found["gpus"]["text"] == "healthy"
    assert found["hold"] is None
    lines = in_lines("gpu01", {**found, "wanted": found["release"]})
    assert lines.splitlines()[0] == f"  gpu01: {found['release']}"
    assert "drain" not in lines


@pytest.mark.parametrize(
    ("engine", "units", "text", "state"),
    [
        ({"current": None}, {}, "nothing is live yet", "warn"),
        ({}, {UNIT: {"active": "failed", "restarts": 5}}, "failed, started again 5 times in vain",
         "bad"),
        ({"started": {"release": "x"}}, {}, "runs x, not what is current", "bad"),
        ({"socket": False}, {}, "loads", "warn"),
        ({"golive_asked": "r9", "golive": {"phase": "judging"}}, {GOLIVE: {"active": "active"}},
         "being switched to r9 (judging)", "warn"),
        ({"golive": {"phase": "judging", "to": "r9"}}, {},
         "serves; the go-live to r9 ended before it was judged: deploy again, which ends it",
         "warn"),
        ({"golive": {"phase": "undone", "to": "r9"}}, {},
         "serves; the go-live to r9 ended before it was judged, and was undone", "warn"),
        ({"stopped": {"who": "ada", "why": "smoke"}}, {UNIT: {"active": "inactive"}},
         "stopped by ada: smoke", "bad"),
    ],
)  # fmt: skip
def test_an_engine_that_is_not(engine: Any, units: Any, text: str, state: str) -> None:
    snapshot = world()
    snapshot["engines"]["main"] |= engine
    for name, change in units.items():
        snapshot["units"][name] = {**snapshot["units"].get(name, {}), **change}
    found = seen(snapshot)
    assert found["engine"] == {"text": text, "state": state}
    assert found["state"] == state


def test_a_drain_a_hold_and_gpus() -> None:
    snapshot = world()
    snapshot["engines"]["main"] |= {
        "drained": {"by": "ada", "reason": "fan 3", "since": 1},
        "hold": {"kept": "r1", "rejected": ["r2"], "who": "ada", "why": "slow"},
    }
    found = seen(snapshot, about("gpu.ecc", "warn"), about("model.unknown", "warn"))
    assert found["drain"] == {"text": "drained by ada: fan 3", "state": "warn"}
    assert found["hold"] == {"text": "held at r1 by ada: slow", "state": "warn"}
    assert found["gpus"] == {"text": "gpu.ecc", "state": "warn"}
    assert seen(world(), about("gpu.fallen-off", "refuse"))["state"] == "bad"
    lines = in_lines("gpu01", {**found, "wanted": "r2"})
    assert "(the settings ask for r2)" in lines
    assert "    ! drain: drained by ada: fan 3" in lines


@pytest.mark.parametrize(
    ("not_after", "text", "state"),
    [
        ("Dec 30 08:00:00 2026 GMT", "until 2026-12-30 (30 days)", "warn"),
        ("Nov 29 08:00:00 2026 GMT", "until 2026-11-29 (-1 days)", "bad"),
        ("tomorrow", "its end, 'tomorrow', cannot be read", "bad"),
        (None, "none that can be read", "bad"),
    ],
)
def test_a_certificate_that_ends(not_after: Any, text: str, state: str) -> None:
    snapshot = world()
    snapshot["gateway"]["certificate"]["not_after"] = not_after
    assert seen(snapshot)["certificate"] == {"text": text, "state": state}


def test_a_model_that_is_damaged() -> None:
    snapshot = world()
    (revision,) = snapshot["models"]["Qwen--Qwen3-32B"].values()
    revision |= {"intact": False, "problems": ["weights: 1 bytes, 2 expected"]}
    assert seen(snapshot)["model"] == {
        "text": "Qwen--Qwen3-32B: weights: 1 bytes, 2 expected", "state": "bad",
    }  # fmt: skip
