"""Each bad state of a host's GPUs, through the real collector: the one right refusal, with a fix;
and a deploy that refuses changes nothing on the host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lab import hosts
from tests.hosts import foresight_host, host_state, pyinfra_run
from tests.hosts.foresight_host import INVENTORY, NAME
from tests.hosts.lab_session import is_lab_down
from tests.hosts.pyinfra_run import BIN, REPOSITORY
from tests.states import LESSER, REFUSALS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Without the listing: what a model takes on a disk is the machine's affair, not this test's.
MODEL = REPOSITORY / "tests" / "fixtures" / "models" / "qwen3-235b-a22b-fp8"
DEPLOYED = ("hang", "old-driver", "narrow", "orphan")


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The host is up; in the inventory under its own name and once under each state's."""
    was_down = is_lab_down()
    foresight_host.bring_up()
    root = tmp_path_factory.mktemp("foresight")
    yield foresight_host.checkout(root, [NAME, *REFUSALS])
    foresight_host.take_down(was_down=was_down)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    for name in ("config.json", "model.safetensors.index.json"):
        (directory / name).write_bytes((MODEL / name).read_bytes())
    return directory


def plan(inventory: Path, model: Path, *more: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """(exit code of `fleet plan --json`, host -> its part)."""
    argv = [str(BIN / "fleet"), "plan", str(inventory), "--json", "--model-config", str(model)]
    done = pyinfra_run.run([*argv, *more], root=inventory.parents[1])
    assert done.stdout, done.stderr
    return done.returncode, {one["host"]: one for one in json.loads(done.stdout)["hosts"]}


def findings(host: dict[str, Any], severity: str) -> list[dict[str, Any]]:
    return [one for one in host["findings"] if one["severity"] == severity]


@pytest.fixture(scope="module")
def planned(
    inventory: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """state -> what the plan says of the host in it."""
    facts = tmp_path_factory.mktemp("facts")
    for state in REFUSALS:
        hosts.gpu(NAME, state)
        foresight_host.collect(facts / state)
    hosts.gpu(NAME, "ok")
    code, found = plan(inventory, model, "--facts", str(facts), "--limit", ",".join(REFUSALS))
    assert code == 1
    return found


@pytest.mark.parametrize("state", REFUSALS)
def test_each_state_has_its_one_refusal(planned: dict[str, dict[str, Any]], state: str) -> None:
    host = planned[state]
    refused = findings(host, "refuse")
    assert [one["id"] for one in refused] == [*filter(None, [REFUSALS[state]])]
    assert all(one["fix"] and one["evidence"] for one in refused)
    if state in LESSER:
        assert LESSER[state] in [one["id"] for one in host["findings"]]


def test_a_healthy_host_plans_its_layout_and_is_warned_of_its_unlocked_model_alone(
    inventory: Path, model: Path
) -> None:
    hosts.gpu(NAME, "ok")
    code, found = plan(inventory, model, "--limit", NAME)
    host = found[NAME]
    assert (code, findings(host, "refuse")) == (0, [])
    assert [one["id"] for one in findings(host, "warn")] == ["model.not-locked"]
    assert [gpu["name"] for gpu in host["hardware"]["gpus"]] == ["NVIDIA L20"] * 8
    assert host["memory"]["layout"] == "TP8 + EP"
    assert host["changes"]


@pytest.mark.parametrize("state", DEPLOYED)
def test_a_deploy_changes_nothing_on_a_refused_host(inventory: Path, state: str) -> None:
    hosts.gpu(NAME, state)
    files, rest = host_state.tree(NAME), foresight_host.inside(NAME)
    ran = pyinfra_run.deploy(inventory.parents[1], f"inventories/{INVENTORY}.py", "--limit", NAME)
    assert ran.code != 0
    ran.said(REFUSALS[state])
    assert host_state.differences(files, host_state.tree(NAME)) == []
    assert host_state.differences(rest, foresight_host.inside(NAME)) == []
