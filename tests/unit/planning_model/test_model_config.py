"""config.json, index and listing -> ModelShape; and what is not as it should be."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.planning.config_fields import parse_json
from pyinfra_deploy.planning.model_config import read_model
from tests.unit.planning_model import shapes
from tests.unit.planning_model.shapes import shape

INDEX: dict[str, Any] = {
    "metadata": {"total_size": 61064245248},
    "weight_map": {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
    },
}


def test_head_dim_is_read_where_it_is_stated_and_divided_where_not() -> None:
    stated, divided = shape(shapes.QWEN3_32B), shape(shapes.LLAMA3_70B)
    assert (stated.head_dim, stated.head_dim_explicit) == (128, True)  # not 5120 / 64 = 80
    assert (divided.head_dim, divided.head_dim_explicit) == (128, False)


@pytest.mark.parametrize(
    ("config", "gb"),
    [
        (shapes.QWEN3_32B, 65.52),
        (shapes.QWEN3_235B, 470.19),
        (shapes.QWEN3_235B_FP8, 236.4),
        (shapes.LLAMA3_70B, 141.1),
        (shapes.MIXTRAL_8X7B, 93.4),
        (shapes.DEEPSEEK_V3, 688.6),  # the hub's 163 shards
        (shapes.GPT_OSS_120B, 65.3),  # the hub's 15 shards
    ],
)
def test_weights_counted_from_the_shape_meet_the_published_size(
    config: dict[str, Any], gb: float
) -> None:
    assert shape(config).weights.total_bytes / 1e9 == pytest.approx(gb, rel=0.011)
    assert shape(config).weights.source == "computed"


def test_that_weights_were_only_counted_is_said() -> None:
    found = read_model(shapes.QWEN3_32B, host="h1")
    assert [one.id for one in found.findings] == ["model.weights-estimated"]
    assert read_model(shapes.QWEN3_32B, INDEX).findings == ()


def test_experts_of_mixtral_are_as_wide_as_its_intermediate_size() -> None:
    moe = shape(shapes.MIXTRAL_8X7B).experts
    assert moe is not None
    assert (moe.count, moe.per_token, moe.intermediate, all(moe.layers)) == (8, 2, 14336, True)


def test_deepseek_has_dense_layers_shared_experts_and_latent_attention() -> None:
    found = shape(shapes.DEEPSEEK_V3)
    assert found.experts is not None
    assert found.experts.layers[:4] == (False, False, False, True)
    assert found.experts.shared_intermediate == 2048
    assert found.latent is not None
    assert (found.latent.kv_lora_rank, found.latent.rope_head_dim) == (512, 64)
    assert found.native_context == 163840
    assert found.draft_layers == 1


def test_layer_kinds() -> None:
    oss, gemma, hybrid = map(shape, (shapes.GPT_OSS_120B, shapes.GEMMA3_27B, shapes.QWEN35_27B))
    assert oss.attention.count("sliding") == oss.attention.count("full") == 18
    assert gemma.attention[:6] == ("sliding",) * 5 + ("full",)
    assert gemma.multimodal
    assert gemma.tied_embeddings
    assert hybrid.attention.count("full") == 16
    assert hybrid.attention.count("linear") == 48
    assert oss.native_context == 131072


def test_quantisation_dialects() -> None:
    def quantised(**config: Any) -> Any:
        return shape({**shapes.LLAMA3_70B, "quantization_config": config}).quantization

    fp8 = shape(shapes.QWEN3_235B_FP8).quantization
    assert fp8 is not None
    assert (fp8.method, fp8.bits, fp8.block, fp8.activation_scheme) == (
        "fp8",
        8,
        (128, 128),
        "dynamic",
    )
    gptq = quantised(quant_method="gptq", bits=4, group_size=-1)
    assert (gptq.bits, gptq.group_size) == (4, None)
    packed = quantised(
        quant_method="compressed-tensors",
        config_groups={"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
        kv_cache_scheme={"num_bits": 8, "type": "float"},
    )
    assert (packed.bits, packed.group_size, packed.kv_cache_fp8) == (4, 32, True)
    nvfp4 = quantised(quant_method="modelopt", quant_algo="NVFP4", kv_cache_quant_algo="FP8")
    assert (nvfp4.bits, nvfp4.group_size, nvfp4.kv_cache_fp8) == (4, 16, True)
    assert shape(shapes.GPT_OSS_120B).quantization.experts_only  # type: ignore[union-attr]


def test_index_and_listing_tell_the_size() -> None:
    listing = {"model-00001-of-00002.safetensors": 40 * 10**9, "config.json": 700}
    listing["model-00002-of-00002.safetensors"] = 21064300000
    assert shape(shapes.QWEN3_32B, INDEX).weights.source == "index"
    both = read_model(shapes.QWEN3_32B, INDEX, listing)
    assert both.findings == ()
    hub = {"Data": {"Files": [{"Path": path, "Size": size} for path, size in listing.items()]}}
    alone = shape(shapes.QWEN3_32B, None, hub).weights
    assert (alone.source, alone.total_bytes) == ("listing", 61064300000)


def test_index_and_listing_of_different_revisions() -> None:
    sizes = dict.fromkeys(set(INDEX["weight_map"].values()), 10**9)
    found = read_model(shapes.QWEN3_32B, INDEX, sizes)
    assert [one.id for one in found.findings] == ["model.sizes-disagree"]
    assert found.shape is not None
    assert found.shape.weights.total_bytes == 2 * 10**9
    missing = read_model(shapes.QWEN3_32B, INDEX, {"model-00001-of-00002.safetensors": 10**9})
    assert "model.shard-missing" in shapes.ids(missing.findings, "refuse")


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a/../../b", "..\\b", "C:\\b", " ", "a\0b"]
)
def test_an_index_that_leaves_the_directory_is_refused(name: str) -> None:
    found = read_model(shapes.QWEN3_32B, {"weight_map": {"a": name}}, host="h1")
    assert "model.index-outside-directory" in shapes.ids(found.findings, "refuse")
    assert found.shape is not None
    assert found.shape.weights.shards == ()


@pytest.mark.parametrize("text", ["", "<html>404</html>", '{"a": ', b"\xff\xfe", "[" * 100_000])
def test_a_file_that_is_no_json(text: str | bytes) -> None:
    value, findings = parse_json(text, "config.json", "h1")
    assert value is None
    assert [(one.id, one.severity) for one in findings] == [("model.not-json", "refuse")]


@pytest.mark.parametrize("config", [None, [], "x", 3, {}, {"num_hidden_layers": 10**9}])
def test_nothing_to_plan_from(config: object) -> None:
    found = read_model(config, host="h1")
    assert found.shape is None
    assert "model.shape-unknown" in shapes.ids(found.findings)


WRONG: list[object] = [
    None,
    -1,
    0,
    "8",
    1.5,
    True,
    [],
    {},
    float("nan"),
    float("inf"),
    10**30,
    "x" * 10_000,
]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:20])
def test_wrong_values_anywhere_are_findings_and_no_crash(value: object) -> None:
    for base in (shapes.QWEN3_235B_FP8, shapes.DEEPSEEK_V3, shapes.QWEN35_27B["text_config"]):
        for key in base:
            found = read_model({**base, key: value}, INDEX, {"a.safetensors": 5}, "h1")
            assert found.shape is None or found.shape.layers > 0
    for key in ("weight_map", "metadata"):
        read_model(shapes.QWEN3_32B, {**INDEX, key: value}, host="h1")
    read_model(shapes.QWEN3_32B, {"metadata": {"total_size": value}, "weight_map": {"a": value}})
    read_model(shapes.QWEN3_32B, value, value, "h1")
    read_model(shapes.QWEN3_32B, None, [{"Path": "a.safetensors", "Size": value}, value], "h1")


def test_a_wrong_value_is_shown() -> None:
    found = read_model({**shapes.QWEN3_32B, "num_key_value_heads": "8"}, INDEX, host="h1")
    assert [one.id for one in found.findings] == ["model.file-value"]
    assert found.findings[0].evidence == "num_key_value_heads: 8"
    assert found.shape is not None
    assert found.shape.kv_heads == 64


def test_an_unknown_architecture_is_planned_and_said_to_be_unknown() -> None:
    config = {**shapes.LLAMA3_70B, "architectures": ["BrandNewForCausalLM"]}
    found = read_model(config, INDEX, host="h1")
    assert found.shape is not None
    assert found.shape.layers == 80
    assert shapes.ids(found.findings) == {"model.unknown-architecture"}


def test_older_names_of_the_same_keys() -> None:
    config = {"architectures": ["X"], "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 99}
    found = shape(config)
    assert (found.layers, found.hidden, found.heads, found.kv_heads) == (2, 64, 4, 4)
