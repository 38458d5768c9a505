"""After a real start the engine's own figures replace the estimate: of that release and GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.deploys.artefacts import artefacts_for
from pyinfra_deploy.facts.hardware import Gpu
from pyinfra_deploy.planning.start_figures import figures_of, recorded_start
from pyinfra_deploy.settings.fleet import load_fleet
from tests.unit.foresight.places import ids
from tests.unit.planning import worlds

if TYPE_CHECKING:
    from tests.unit.foresight.places import Place

GIB = 2**30
L20 = (Gpu(0, "NVIDIA L20"),)
LINES = [
    "INFO 11-30 08:00:00 [gpu_model_runner.py:3411] Model loading took 27.71 GiB memory",
    "INFO 11-30 08:00:10 [gpu_worker.py:316] Available KV cache memory: 9.83 GiB",
    "INFO 11-30 08:00:11 [gpu_worker.py:316] Available KV cache memory: 9.81 GiB",
]


def start(**changes: Any) -> dict[str, Any]:
    return {"release": "r1", "gpus": ["NVIDIA L20"] * 8, "lines": LINES, **changes}


def snapshot(found: Any, current: str | None = "r1") -> dict[str, Any]:
    return {"engines": {"main": {"current": current, "start": found}}}


def test_a_start_of_the_current_release_counts() -> None:
    assert recorded_start(snapshot(start()), "main") == start()
    assert recorded_start(snapshot(start(), "r2"), "main") is None
    assert recorded_start(snapshot(start(lines="no list")), "main") is None
    assert recorded_start(snapshot({"error": "it is not JSON"}), "main") is None
    assert recorded_start(snapshot(None, None), "main") is None
    assert recorded_start(snapshot(start()), "other") is None
    for damaged in (None, {}, {"engines": {"error": "x"}}, {"engines": {"main": None}}):
        assert recorded_start(damaged, "main") is None


def test_the_least_of_the_workers_counts_for_this_release_and_gpu_alone() -> None:
    figures = figures_of(start(), "r1", L20)
    assert figures is not None
    assert figures.available_bytes == pytest.approx(9.81 * GIB)
    assert figures_of(start(), "r2", L20) is None
    assert figures_of(start(), None, L20) is None
    assert figures_of(None, "r1", L20) is None
    assert figures_of(start(), "r1", (Gpu(0, "NVIDIA L40S"),)) is None
    assert figures_of(start(gpus=[]), "r1", L20) is not None
    assert figures_of(start(lines=["nothing of memory"]), "r1", L20) is None


def deployed(place: Place, running: str = "", **changes: Any) -> None:
    """A snapshot of gpu01 as after a deploy with these settings, and its engine's lines.

    running: a release to which a go-live is at work.
    """
    fleet = load_fleet(place.inventory)
    settings = fleet.hosts["gpu01"].settings
    data = {"name": fleet.name, "directory": str(fleet.directory), "root": str(fleet.root)}
    artefacts = artefacts_for(data, settings)
    world = worlds.converged(settings, artefacts)
    world["os"] |= {"id": "ubuntu", "version_id": "24.04", "codename": "noble",
                    "pythons": ["/usr/bin/python3.12"], "python": "3.12.3"}  # fmt: skip
    engine = world["engines"]["main"]
    engine["start"] = start(release=engine["current"], **changes)
    if running:
        engine["golive_asked"] = running
        world["units"]["llm-golive@main.service"] = worlds.unit(active="active")
    (place.facts / "gpu01" / "snapshot.json").write_text(json.dumps(world))


def test_the_plan_takes_the_engine_at_its_word(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed(place)
    code, hosts = place.plan(capsys)
    memory = hosts["gpu01"]["memory"]
    assert (code, memory["source"]) == (0, "measured")
    available = memory["available_bytes"]
    assert available["low"] == available["high"] == pytest.approx(9.81 * GIB)
    _, text = place.text(capsys)
    assert "the engine's own figure" in text
    assert "estimate" not in text


def test_another_release_or_card_is_estimated(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed(place, gpus=["NVIDIA L40S"] * 8)
    _, hosts = place.plan(capsys)
    assert hosts["gpu01"]["memory"]["source"] == "estimate"
    deployed(place)
    args = {**place.settings["engine"]["args"], "max-model-len": 8192}
    place.write(engine={"args": args})
    _, hosts = place.plan(capsys)
    assert hosts["gpu01"]["memory"]["source"] == "estimate"


def test_a_go_live_to_another_release_is_refused_by_the_plan_too(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write()
    deployed(place, running="0123456789abcdef")
    code, hosts = place.plan(capsys)
    assert (code, hosts["gpu01"]["changes"]) == (1, None)
    assert ids(hosts["gpu01"], "refuse") == ["engine.other-go-live"]
