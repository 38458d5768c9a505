"""What is wrong with what a plan is given: words and an exit code, never a traceback."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.cli import main
from pyinfra_deploy.facts import raw
from pyinfra_deploy.planning import tables
from pyinfra_deploy.settings import contradictions
from tests.unit.foresight.places import L20X8, QWEN3_235B, Place, finding, ids

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "model.safetensors.index.json"


@pytest.fixture
def model(place: Place, tmp_path: Path) -> Path:
    """A copy of the model's documents, to be broken."""
    place.model = tmp_path / "model"
    shutil.copytree(QWEN3_235B, place.model)
    return place.model


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_an_unknown_model_type_is_planned_with_what_is_known(
    place: Place, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(model / "config.json", model_type="qwen9_moe", architectures=["Qwen9MoeForCausalLM"])
    code, hosts = place.plan(capsys)
    host = hosts["gpu01"]
    assert (code, ids(host, "refuse")) == (0, [])
    assert {"model.unknown-architecture", "compat.architecture-unknown"} <= set(ids(host, "warn"))
    assert host["memory"]["layout"] == "TP8 + EP"


def test_a_config_that_is_no_json(
    place: Place, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "config.json").write_text("<html>502 Bad Gateway</html>")
    code, hosts = place.plan(capsys)
    host = hosts["gpu01"]
    assert (code, ids(host, "refuse")) == (1, ["model.not-json"])
    assert host["model"] is None
    said = finding(host, "model.not-json")
    assert "config.json" in said["subject"] + said["message"]
    assert said["fix"]


def test_an_index_that_names_a_file_outside(
    place: Place, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((model / INDEX).read_text())
    document["weight_map"]["model.norm.weight"] = "../../etc/passwd"
    (model / INDEX).write_text(json.dumps(document))
    code, hosts = place.plan(capsys)
    assert (code, ids(hosts["gpu01"], "refuse")) == (1, ["model.index-outside-directory"])
    assert (
        "../../etc/passwd" in finding(hosts["gpu01"], "model.index-outside-directory")["evidence"]
    )


def test_a_directory_without_a_config(
    place: Place, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "config.json").unlink()
    code, hosts = place.plan(capsys)
    assert (code, hosts["gpu01"]["model"]) == (2, None)
    assert "config.json" in finding(hosts["gpu01"], "model.unknown")["evidence"]


def test_a_hub_that_is_gone(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.write(model={"endpoint": "http://127.0.0.1:9"})
    code, hosts = place.plan(capsys, "--hub")
    assert code == 2
    host = hosts["gpu01"]
    assert (host["model"], host["memory"], ids(host, "refuse")) == (None, None, [])
    said = finding(host, "model.unknown")
    assert "127.0.0.1:9" in said["evidence"]
    assert "--model-config" in said["fix"]


def test_settings_that_contradict_each_other_name_both_keys(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    args = {**place.settings["engine"]["args"], "tensor-parallel-size": 16}
    place.write(engine={"args": args})
    assert main(place.arguments()) == 1
    said = capsys.readouterr().err
    assert "expected_gpus" in said
    assert "tensor-parallel-size" in said


@pytest.mark.parametrize(
    ("args", "word"),
    [({"gpu-memory-utilization": 95}, "utilization"), ({"max-model-len": -1}, "max-model-len"),
     ({"tensor-parallel-size": 0}, "tensor-parallel-size")],
)  # fmt: skip
def test_absurd_values(
    place: Place, capsys: pytest.CaptureFixture[str], args: Any, word: str
) -> None:
    place.write(engine={"args": {**place.settings["engine"]["args"], **args}})
    assert main(place.arguments()) == 1
    assert word in capsys.readouterr().err


def test_a_vllm_that_is_too_old_for_this_project(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """0.5.3, as in a field report; with the versions that would do."""
    place.write(runtime={"vllm": "0.5.3"})
    assert main(place.arguments()) == 1
    said = capsys.readouterr().err
    assert "0.5.3" in said
    assert "0.10.1.1" in said
    said = " ".join(said.split())
    assert "0.33.0 is the newest known" in said
    assert "before 0.8.4 knows Qwen3, nor before 0.8.5 its FP8" in said
    rows = tables.vllm_versions().versions
    assert max(row.vllm for row in rows) == contradictions.NEWEST_VLLM
    assert max(row.vllm for row in rows if row.cuda < (13, 0)) == contradictions.NEWEST_OF_CUDA_12


def test_no_facts_of_a_host(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(place.facts / "gpu01")
    code, hosts = place.plan(capsys)
    assert (code, ids(hosts["gpu01"])) == (2, ["host.not-collected"])
    assert "fleet facts collect" in finding(hosts["gpu01"], "host.not-collected")["fix"]


def test_a_missing_file_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {f"gpu{number:02}": name for number, name in enumerate(sorted(raw.NAMES))}
    many = Place(tmp_path / "many", *names)
    many.write()
    for host, name in names.items():
        (many.facts / host / name).unlink()
    code, hosts = many.plan(capsys)
    assert code == 0
    for host, name in names.items():
        assert ids(hosts[host], "refuse") == []
        assert name in finding(hosts[host], "facts.unread")["message"]


def test_the_operating_system_is_judged_without_a_snapshot(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Facts that were put together by hand: os-release and uname tell enough to refuse."""
    place.rewrite("os-release", lambda _: 'ID=rocky\nVERSION_ID="9.4"\n')
    place.rewrite("uname.txt", lambda text: text.replace("x86_64", "aarch64"))
    code, hosts = place.plan(capsys)
    host = hosts["gpu01"]
    assert (code, ids(host, "refuse")) == (1, ["os.unsupported", "os.architecture"])
    assert finding(host, "os.unsupported")["evidence"] == "ID=rocky VERSION_ID=9.4"
    assert "host.no-snapshot" in ids(host, "note")
    assert host["changes"] is None


@pytest.mark.parametrize("name", ["os-release", "uname.txt"])
def test_an_operating_system_that_was_not_read_is_not_taken_for_another(
    place: Place, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (place.facts / "gpu01" / name).unlink()
    code, hosts = place.plan(capsys)
    assert (code, ids(hosts["gpu01"], "refuse")) == (0, [])


def test_what_could_not_be_found_out_is_in_the_last_line(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write(model={"endpoint": "http://127.0.0.1:9"})
    code, text = place.text(capsys, "--hub")
    assert code == 2
    assert text.rstrip().endswith("not all could be found out: gpu01 (model.unknown).")


def test_every_file_is_known(place: Place) -> None:
    assert {path.name for path in L20X8.iterdir()} == set(raw.NAMES)


def test_no_gpu(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    path = place.facts / "gpu01" / "nvidia-smi-q-x.xml"
    path.write_text("No devices were found\n")
    path.with_name(f"{path.name}.exit").write_text("6\n")
    path.with_name(f"{path.name}.stderr").write_text("")
    (place.facts / "gpu01" / "nvidia-smi-query-gpu.csv").write_text("No devices were found\n")
    code, hosts = place.plan(capsys)
    assert (code, ids(hosts["gpu01"], "refuse")) == (1, ["gpu.none"])


def test_mixed_models(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("nvidia-smi-q-x.xml", "nvidia-smi-query-gpu.csv"):
        place.rewrite(name, lambda text: text.replace("NVIDIA L20", "NVIDIA A40", 1))
    code, hosts = place.plan(capsys)
    assert (code, ids(hosts["gpu01"], "refuse")) == (1, ["gpu.mixed-models"])


def test_sixteen_gpus_with_holes_in_their_topology(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    holes = (L20X8.parents[2] / "unit/facts/fixtures/topo/bad-sixteen-empty-cells.txt").read_text()
    (place.facts / "gpu01" / raw.SMI_TOPOLOGY).write_text(holes)
    code, hosts = place.plan(capsys)
    assert (code, ids(hosts["gpu01"], "refuse")) == (0, [])
    assert raw.SMI_TOPOLOGY in finding(hosts["gpu01"], "facts.unread")["message"]
