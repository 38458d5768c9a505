"""How models are made: whole or not at all, once; and the files they consist of."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.hub import store
from lab.hub.places import models_directory
from lab.models import catalogue, safetensors_file, smollm2, tiny_moe
from lab.models.catalogue import Model, make_missing
from lab.models.safetensors_file import Tensor, split_into_shards, write_model

GOOD = Model("lab/good", "making_good", "one file")
BAD = Model("lab/bad", "making_bad", "fails half way")


@pytest.fixture
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the programs that make models, and this interpreter for the environment."""
    write = "import pathlib, sys; pathlib.Path(sys.argv[1], 'config.json').write_text('{}')\n"
    (tmp_path / "making_good.py").write_text(write)
    (tmp_path / "making_bad.py").write_text(write + "sys.exit('no more disk')\n")
    monkeypatch.setattr(catalogue, "REPOSITORY", tmp_path)
    monkeypatch.setattr(catalogue, "tool_python", lambda hub, say: Path(sys.executable))


@pytest.mark.usefixtures("_modules")
def test_made_once(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    said: list[str] = []
    assert make_missing(hub, said.append, (GOOD,)) == ["lab/good"]
    assert any(line.startswith("making lab/good") for line in said)
    assert store.model_ids(models_directory(hub)) == ["lab/good"]
    said.clear()
    assert (make_missing(hub, said.append, (GOOD,)), said) == ([], [])


@pytest.mark.usefixtures("_modules")
def test_what_fails_half_way_is_not_there_and_says_why(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    with pytest.raises(LabError) as caught:
        make_missing(hub, lambda _: None, (GOOD, BAD))
    assert "lab/bad could not be made" in str(caught.value)
    assert "no more disk" in str(caught.value)
    assert store.model_ids(models_directory(hub)) == ["lab/good"]
    assert list((hub / "making").iterdir())
    make_missing(hub, lambda _: None, (GOOD, Model("lab/third", "making_good", "")))
    assert not (hub / "making").exists()


def test_shards_are_even_and_in_order() -> None:
    tensors = [Tensor(f"t{n}", (size,), lambda: None) for n, size in enumerate([8, 2, 2, 2, 2, 8])]
    parts = split_into_shards(tensors, 3)
    assert [[tensor.name for tensor in part] for part in parts] == [
        ["t0"],
        ["t1", "t2", "t3", "t4"],
        ["t5"],
    ]


def test_files_and_index_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "bfloat16_bytes", lambda values: values)
    tensors = [Tensor(f"t{n}", (2, 3), functools.partial(bytes, [n] * 12)) for n in range(4)]
    write_model(tmp_path, tensors, 2)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 48
    for name, shard in index["weight_map"].items():
        content = (tmp_path / shard).read_bytes()
        length = int.from_bytes(content[:8], "little")
        assert length % 8 == 0
        entry = json.loads(content[8 : 8 + length])[name]
        begin, end = entry["data_offsets"]
        assert content[8 + length :][begin:end] == bytes([int(name[1])]) * 12
        assert (entry["dtype"], entry["shape"]) == ("BF16", [2, 3])


def test_a_tensor_of_another_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_file, "bfloat16_bytes", lambda values: values)
    with pytest.raises(ValueError, match="t0: 5 bytes were made"):
        write_model(tmp_path, [Tensor("t0", (3,), lambda: b"12345")], 1)


def test_names_of_smollm2s_tensors() -> None:
    assert smollm2.hugging_face_name("blk.3.attn_q.weight") == (
        "model.layers.3.self_attn.q_proj.weight"
    )
    assert smollm2.hugging_face_name("token_embd.weight") == "model.embed_tokens.weight"
    with pytest.raises(KeyError):
        smollm2.hugging_face_name("blk.3.attn_sinks.weight")


def test_tiny_moe_has_every_tensor_of_its_configuration() -> None:
    shapes = {tensor.name: tensor.shape for tensor in tiny_moe.weights()}
    config = tiny_moe.CONFIG
    experts = [name for name in shapes if name.endswith("down_proj.weight")]
    assert len(experts) == config["num_hidden_layers"] * config["num_experts"]
    assert shapes["model.layers.1.self_attn.q_proj.weight"] == (128, 64)
    assert shapes["lm_head.weight"] == (1024, 64)
    assert len(tiny_moe.WORDS.split()) > 400
