"""The commands over this machine, which no plan lets through: it has no systemd and no model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fakes.rollout_host import RolloutHost


@pytest.mark.parametrize("words", [("rollout", "prod", "--yes"), ("deploy", "prod", "--yes")])
def test_what_a_plan_refuses_is_not_begun(
    rollout_host: RolloutHost, words: tuple[str, ...]
) -> None:
    said = rollout_host.fleet(*words)
    assert said.returncode == 1, said.stdout + said.stderr
    assert "not begun: gpu01 cannot be deployed to as they are" in said.stderr
    assert "Traceback" not in said.stderr
    assert rollout_host.state("rollout.json") is None


def test_there_is_nothing_to_resume_or_to_roll_back(rollout_host: RolloutHost) -> None:
    said = rollout_host.fleet("rollout", "prod", "--resume")
    assert (said.returncode, said.stdout) == (1, "")
    assert "there is no rollout to go on with" in said.stderr
    said = rollout_host.fleet("rollback", "prod", "--yes")
    assert said.returncode == 1
    assert "no host runs the release that the settings ask for" in said.stderr
    assert "gpu01: none" in said.stderr


def test_the_day_by_day(rollout_host: RolloutHost) -> None:
    rollout_host.engine("done", "x", "r1")
    said = rollout_host.fleet("drain", "prod", "gpu01", "--why", "fan 3", "--wait", "0")
    assert said.returncode == 0, said.stderr
    assert said.stdout == "gpu01: drained; the engine does not tell what runs\n"
    assert json.loads((rollout_host.root / "run/llm/drain/main").read_text())["reason"] == "fan 3"
    said = rollout_host.fleet("undrain", "prod", "gpu01")
    assert (said.returncode, "serves again" in said.stdout) == (0, True), said.stderr
    said = rollout_host.fleet("unhold", "prod")
    assert (said.returncode, said.stdout) == (0, "gpu01: was not held\n"), said.stderr
    said = rollout_host.fleet("drift", "prod")
    assert said.returncode == 2, said.stdout + said.stderr
    assert "gpu01: NOT JUDGED: " in said.stderr
    said = rollout_host.fleet("status", "prod", "--json")
    assert said.returncode in (1, 2), said.stderr
    assert "Traceback" not in said.stderr
    said = rollout_host.fleet("report", "open", "prod")
    assert (said.returncode, "there is no report of any run" in said.stderr) == (1, True)
    said = rollout_host.fleet("uninstall", "prod", "gpu01", "--dry")
    assert said.returncode == 0, said.stderr
    assert f"stays: {rollout_host.llm_root}/models: the models" in said.stdout
