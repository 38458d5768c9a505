"""What is not known of a host is not taken for absent, and what a model cannot is not promised."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.unit.foresight.places import QWEN3_32B, Place, ids

if TYPE_CHECKING:
    from pathlib import Path


def test_a_host_that_was_not_collected_is_unknown_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, "gpu01", "gpu02")
    place.write()
    shutil.rmtree(place.facts / "gpu02")
    code, hosts = place.plan(capsys)
    assert ids(hosts["gpu02"]) == ["host.not-collected"]
    assert not hosts["gpu02"]["refused"]
    assert code == 2
    _, text = place.text(capsys)
    assert "REFUSED" not in text
    # Not "no GPU listed": nobody has looked.
    assert "gpu02: not everything could be found out" in text
    assert "no GPU" not in text
    assert "1 of 2 hosts would be deployed" in text


@pytest.mark.parametrize("collected", [True, False])
def test_a_host_without_an_engine_is_not_refused_for_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], collected: bool
) -> None:
    place = Place(tmp_path, "gpu01", "box01")
    place.write()
    path = tmp_path / "inventories/prod/hosts.yml"
    inventory = yaml.safe_load(path.read_text())
    for role in ("gpu", "gateway"):
        del inventory["all"]["children"][role]["hosts"]["box01"]
    path.write_text(yaml.safe_dump(inventory, sort_keys=False))
    if collected:
        for name in ("nvidia-smi-q-x.xml", "nvidia-smi-query-gpu.csv", "pci-gpus.txt"):
            place.rewrite(name, lambda text: "", "box01")
    else:
        shutil.rmtree(place.facts / "box01")
    code, hosts = place.plan(capsys)
    assert not hosts["box01"]["refused"], ids(hosts["box01"], "refuse")
    assert code == (0 if collected else 2)


def test_a_plan_does_not_promise_more_context_than_the_model_has(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.model = QWEN3_32B
    place.write(engine={"args": {"max-model-len": 100_000, "tensor-parallel-size": 8}})
    _, hosts = place.plan(capsys)
    assert "model.context-too-long" in ids(hosts["gpu01"], "refuse")
    assert hosts["gpu01"]["memory"]["longest_context"]["high"] == 40_960


def test_gpus_that_nobody_could_read_are_not_found_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host is left as it is, and the exit code says that looking again may change that."""
    place = Place(tmp_path, "gpu01", "gpu02")
    place.write()
    for name in ("nvidia-smi-q-x.xml", "nvidia-smi-query-gpu.csv"):
        (place.facts / "gpu02" / name).unlink()
    code, hosts = place.plan(capsys)
    assert (code, ids(hosts["gpu02"], "refuse")) == (2, ["gpu.unread"])
    assert hosts["gpu02"]["refused"]
    code, text = place.text(capsys)
    assert text.rstrip().splitlines()[-1] == (
        "1 of 2 hosts would be deployed; not all could be found out: gpu02 (gpu.unread)."
    )
    # What was found out outweighs it.
    place.rewrite("os-release", lambda _: 'ID=rocky\nVERSION_ID="9.4"\n', "gpu02")
    code, text = place.text(capsys)
    assert code == 1
    assert text.rstrip().splitlines()[-1] == "1 of 2 hosts would be deployed; refused: gpu02."


@pytest.mark.parametrize("masked", [True, False])
def test_masked_uuids_are_said(
    place: Place, capsys: pytest.CaptureFixture[str], masked: bool
) -> None:
    text = (place.facts / "gpu01" / "nvidia-smi-q-x.xml").read_text()
    first = re.search(r"GPU-[0-9a-f-]{36}", text)
    assert first is not None
    if masked:
        other = "GPU-00000001-0000-0000-0000-000000000001"
        for name in ("nvidia-smi-q-x.xml", "nvidia-smi-query-gpu.csv"):
            place.rewrite(name, lambda text: text.replace(first[0], other))
    _, hosts = place.plan(capsys)
    assert ("facts.uuids-masked" in ids(hosts["gpu01"], "note")) == masked
