"""Before a release is staged: what the host says of engine.args, and what an upgrade changes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.operations import engine_steps
from tests.fakes.pyinfra_host import refusal
from tests.unit.operations.test_engine_steps import NEW, jobs_end, plan_of

if TYPE_CHECKING:
    from tests.fakes.pyinfra_host import PyinfraWorld


@pytest.fixture(autouse=True)
def _fresh(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, logger="pyinfra")
    monkeypatch.setattr(engine_steps, "_pulled", {})


def flag(**changes: Any) -> dict[str, Any]:
    return {"aliases": [], "kind": "value", "type": "int", "choices": None, "default": "1",
            "deprecated": None, **changes}  # fmt: skip


def test_what_the_host_refuses_is_not_staged(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    said = refusal("vLLM 0.33.0 does not take engine.args", "max-model-lens is not an argument")
    world.script.says("release review", said)
    assert not world.run(engine_steps.go_live, plan=plan_of(engine=NEW), verification=None)
    assert world.script.commands() == ["release review"]
    assert "max-model-lens is not an argument" in caplog.text


def test_the_host_gets_what_the_file_will_say_and_advice_on_what_is_gone(
    world: PyinfraWorld,
) -> None:
    jobs_end(world, {"state": "done", "result": {}})
    plan = plan_of(engine={"args": {"max-model-len": 8192, "swap-space": 4}})
    assert world.run(engine_steps.go_live, plan=plan, verification=None)
    spec = world.script.sent[0].spec
    assert plan.release is not None
    assert spec["runtime"] == plan.release.runtime.path
    assert spec["arguments"]["max-model-len"] == 8192
    assert spec["arguments"]["served-model-name"] == "Qwen/Qwen3-32B"
    assert list(spec["advice"]) == ["swap-space"]
    assert spec["unknown_accepted"] is False


def test_an_upgrade_says_what_differs(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    jobs_end(world, {"state": "done", "result": {}})
    before = {"max-model-len": flag(), "old": flag(), "speed": flag(default="1")}
    after = {
        "max-model-len": flag(deprecated="Use max-length."),
        "speed": flag(default="2"),
        "new": flag(),
    }
    answer = {"version": "0.33.0", "flags": after, "warnings": ["max-model-len: is old"],
              "before": {"version": "0.32.0", "flags": before}}  # fmt: skip
    world.script.says("release review", answer)
    assert world.run(engine_steps.go_live, plan=plan_of(engine=NEW), verification=None)
    for line in (
        "max-model-len: is old",
        "vLLM 0.32.0 to 0.33.0: 1 new argument, 1 gone, 1 other default, 0 other forms",
        "in engine.args: max-model-len is on its way out: Use max-length.",
        "gone: old",
        "other default: speed 1 -> 2",
        "new: new",
        "fleet runtime flags INVENTORY --diff 0.32.0 0.33.0",
    ):
        assert line in caplog.text


def test_the_same_vllm_again_says_nothing_of_arguments(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    jobs_end(world, {"state": "done", "result": {}})
    world.script.says("release review", {"version": "0.33.0", "warnings": []})
    assert world.run(engine_steps.go_live, plan=plan_of(engine=NEW), verification=None)
    assert "argument" not in caplog.text
