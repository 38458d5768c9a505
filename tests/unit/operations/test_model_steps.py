"""Removing models: under the host's lease, which is given back whatever happens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyinfra_deploy.operations import model_steps
from tests.fakes.pyinfra_host import ROOT, refusal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.pyinfra_host import PyinfraWorld

MODELS = ["o--n/old", "o--n/older"]


def remove(world: PyinfraWorld, told: Path) -> bool:
    return bool(world.run(model_steps.remove_models, models=MODELS, llm_root=ROOT, told=told))


def test_models_are_removed_under_the_lease(world: PyinfraWorld, tmp_path: Path) -> None:
    world.script.says("model remove", {"removed": MODELS, "freed_bytes": 7})
    assert remove(world, tmp_path / "told.json")
    words = [sent.command.removeprefix(f"{ROOT}/bin/fleet-host ") for sent in world.script.sent]
    assert words == ["lease acquire", "model remove", "lease release"]
    assert world.script.sent[1].spec == {"models": MODELS}
    assert world.script.sent[0].spec["generation_seen"] is None
    assert json.loads((tmp_path / "told.json").read_text())["freed_bytes"] == 7


def test_a_refusal_fails_the_host_and_gives_the_lease_back(
    world: PyinfraWorld, tmp_path: Path
) -> None:
    world.script.says("model remove", refusal("o--n/old is not removed", "a release has it"))
    assert not remove(world, tmp_path / "told.json")
    assert "lease release" in world.script.sent[-1].command
    assert not (tmp_path / "told.json").exists()


def test_a_host_that_another_run_holds_is_left_alone(world: PyinfraWorld, tmp_path: Path) -> None:
    world.script.says("lease acquire", refusal("another run is at work on this host"))
    assert not remove(world, tmp_path / "told.json")
    assert not any("model remove" in sent.command for sent in world.script.sent)
