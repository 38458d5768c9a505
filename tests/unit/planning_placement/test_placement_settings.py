"""engine.gpus and engine.numa: what may be written, and what does not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pyinfra_deploy.settings.contradictions import contradictions
from pyinfra_deploy.settings.schema import Settings
from tests.unit.planning_placement.machines import uuid


def settings(expected: int | None = None, **engine: Any) -> Settings:
    return Settings.model_validate({"engine": engine, "gpu_host": {"expected_gpus": expected}})


@pytest.mark.parametrize(
    ("written", "read"),
    [("all", "all"), ([0, 1], (0, 1)), ([uuid(3)], (uuid(3),)), ([2, uuid(3)], (2, uuid(3)))],
)
def test_allowed(written: Any, read: Any) -> None:
    found = settings(gpus=written)
    assert found.engine.gpus == read
    assert Settings.model_validate(found.model_dump()) == found
    assert found.to_json()["engine"]["gpus"] == (written if written == "all" else list(written))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("ALL", "all, or a list"),
        (8, "all, or a list"),
        ([], "all, or a list"),
        (None, "all, or a list"),
        ("0,1", "all, or a list"),
        ([-1], "has -1"),
        ([64], "has 64"),
        ([True], "has True"),
        (["0"], "has '0'"),
        (["GPU-3f2a"], "has 'GPU-3f2a'"),
        (["MIG-" + uuid(1)[4:]], "has 'MIG-"),
        ([0, 1, 0], "names 0 twice"),
    ],
)
def test_refused(written: Any, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(gpus=written)
    (error,) = caught.value.errors()
    assert error["loc"] == ("engine", "gpus")
    assert said in error["msg"]


@pytest.mark.parametrize(
    ("where", "engine", "names"),
    [
        (
            "engine.gpus",
            {"gpus": [0, 1], "args": {"tensor-parallel-size": 2, "pipeline-parallel-size": 2}},
            ("engine.gpus lists 2", "tensor-parallel-size (2)", "pipeline-parallel-size (2)", "4"),
        ),
        ("engine.gpus", {"gpus": [7, 8]}, ("names GPU 8", "gpu_host.expected_gpus is 8", "is 7")),
        (
            "engine.numa",
            {"numa": "off", "args": {"numa-bind": True}},
            ("engine.numa is off", "engine.args.numa-bind"),
        ),
        (
            "engine.args.numa-bind-nodes",
            {"args": {"numa-bind-nodes": [0, 1]}},
            ("engine.args.numa-bind-nodes", "without engine.args.numa-bind:"),
        ),
        (
            "engine.args.numa-bind-cpus",
            {"args": {"numa-bind-cpus": ["0-3"]}},
            ("engine.args.numa-bind-cpus", "without engine.args.numa-bind:"),
        ),
    ],
)
def test_contradictions_name_both_keys(
    where: str, engine: dict[str, Any], names: tuple[str, ...]
) -> None:
    ((key, message, fix),) = contradictions(settings(8, **engine), (), frozenset(), Path())
    assert ".".join(key) == where
    for name in names:
        assert name in message
    assert fix


def test_what_goes_together() -> None:
    for engine in (
        {"gpus": [0, 1, 2, 3], "args": {"tensor-parallel-size": 2}},
        {"gpus": [uuid(7)], "numa": "off"},
        {"args": {"numa-bind": True, "numa-bind-nodes": [0, 1], "tensor-parallel-size": 2}},
    ):
        assert not list(contradictions(settings(8, **engine), (), frozenset(), Path()))


@pytest.mark.parametrize(
    ("engine", "key"),
    [
        ({"env": {"CUDA_VISIBLE_DEVICES": "0,1"}}, "CUDA_VISIBLE_DEVICES"),
        ({"env": {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}}, "CUDA_DEVICE_ORDER"),
        ({"args": {"device-ids": "0,1"}}, "device-ids"),
    ],
)
def test_gpus_are_chosen_in_one_place(engine: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**engine)
    (error,) = caught.value.errors()
    assert "set engine.gpus" in str(error["ctx"]["each"][key])
