"""What each start of an engine writes for the door of its host to say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import engine, release

from pyinfra_deploy.planning.release import engine_configuration

if TYPE_CHECKING:
    from tests.fakes.engine_host import FakeHost


def ready(host: FakeHost, arguments: dict[str, Any], identity: str = "r1") -> Any:
    """ready.json of an engine that was started with these arguments."""
    request = host.release_request(identity)
    request["release"]["served_model_name"] = "org/model"
    request["config_yaml"] = engine_configuration(
        vllm_version="0.33.0", model_path="/m", served_model_name="org/model",
        arguments=arguments, drain_seconds=1,
    )  # fmt: skip
    release.stage(request)
    engine.link("main", "current", identity)
    host.run.mkdir(exist_ok=True)
    engine.started({"engine": "main"})
    return json.loads((host.run / "ready.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "length", "priority"),
    [
        ({"max-model-len": 16384, "scheduling-policy": "priority"}, 16384, True),
        ({"scheduling-policy": "fcfs"}, None, False),
        ({"max-model-len": "16k", "override-generation-config": {"max-model-len": 5}}, None, False),
        ({}, None, False),
    ],
)
def test_a_start_says_what_it_serves(
    host: FakeHost, arguments: dict[str, Any], length: int | None, priority: bool
) -> None:
    assert ready(host, arguments) == {
        "ready": True,
        "draining": False,
        "serves": {
            "release": "r1",
            "model": "org/model",
            "max_model_len": length,
            "priority_scheduling": priority,
        },
    }


def test_a_release_that_is_gone_back_to_says_its_own(host: FakeHost) -> None:
    assert ready(host, {"max-model-len": 8192}, "r2")["serves"]["release"] == "r2"
    assert ready(host, {"scheduling-policy": "priority"})["serves"]["release"] == "r1"
    engine.link("main", "current", "r2")
    engine.started({"engine": "main"})
    told = json.loads((host.run / "ready.json").read_text())["serves"]
    assert (told["release"], told["max_model_len"], told["priority_scheduling"]) == (
        "r2", 8192, False,
    )  # fmt: skip


def test_a_release_that_does_not_name_its_model_leaves_it_to_the_gateways(host: FakeHost) -> None:
    request = host.release_request("r1")
    request["release"].pop("served_model_name", None)
    release.stage(request)
    engine.link("main", "current", "r1")
    host.run.mkdir()
    engine.started({"engine": "main"})
    assert json.loads((host.run / "ready.json").read_text())["serves"] is None
