"""Bytes per token are exact, and tokens follow from memory as vLLM computes them."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.planning.engine_choice import parse_version, read_choice
from pyinfra_deploy.planning.kv_cache import KvCache, kv_cache
from pyinfra_deploy.planning.layout import Layout, stage_layers
from tests.unit.planning_model import shapes
from tests.unit.planning_model.shapes import shape

GIB = 2**30
KIB = 1024


def cache(config: dict[str, Any], version: str = "0.33.0", **args: Any) -> KvCache:
    choice, findings = read_choice({key.replace("_", "-"): value for key, value in args.items()})
    assert findings == ()
    tokens = choice.max_num_batched_tokens or 2048
    found = kv_cache(shape(config), choice.layout, choice, parse_version(version), tokens)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("config", "args", "size"),
    [
        (shapes.QWEN3_32B, {}, 256 * KIB),
        (shapes.QWEN3_32B, {"tensor_parallel_size": 8}, 32 * KIB),
        (shapes.QWEN3_32B, {"kv_cache_dtype": "fp8_e4m3"}, 128 * KIB),
        (shapes.QWEN3_235B, {}, 188 * KIB),
        (shapes.QWEN3_235B, {"tensor_parallel_size": 8}, 48_128),
        (shapes.QWEN3_235B, {"tensor_parallel_size": 4}, 48_128),
        (
            shapes.QWEN3_235B,
            {"tensor_parallel_size": 4, "pipeline_parallel_size": 2},
            24_064,
        ),
        (shapes.LLAMA3_70B, {"tensor_parallel_size": 4}, 80 * KIB),
        (shapes.MIXTRAL_8X7B, {}, 128 * KIB),
        # One latent vector of 512 + 64 values, whatever the tensor parallel size.
        (shapes.DEEPSEEK_V3, {"tensor_parallel_size": 8}, 61 * 576 * 2),
        (shapes.DEEPSEEK_V3, {"tensor_parallel_size": 8, "kv_cache_dtype": "fp8"}, 61 * 576),
        # Only the 18 full layers grow with every token.
        (shapes.GPT_OSS_120B, {}, 18 * 2 * 8 * 64 * 2),
        (shapes.GEMMA3_27B, {}, 10 * 2 * 16 * 128 * 2),
        (shapes.QWEN35_27B, {"tensor_parallel_size": 4}, 16 * 2 * 1 * 256 * 2),
    ],
)
def test_bytes_per_token(config: dict[str, Any], args: dict[str, Any], size: int) -> None:
    assert cache(config, **args).bytes_per_token == size


def test_qwen3_32b_at_its_length() -> None:
    assert cache(shapes.QWEN3_32B).request_bytes(32_768) == 8 * GIB


def test_an_eagle_draft_adds_a_layer() -> None:
    eagle = {"method": "eagle3", "num_speculative_tokens": 3}
    assert cache(shapes.LLAMA3_70B, speculative_config=eagle).bytes_per_token == 81 * 4 * KIB


def test_heads_are_kept_more_than_once_when_there_are_fewer_than_ranks() -> None:
    assert cache(shapes.QWEN3_235B, tensor_parallel_size=8).copies == 2
    assert cache(shapes.QWEN3_235B, tensor_parallel_size=4).copies == 1


def test_a_layer_that_is_left_over_decides() -> None:
    found = cache(shapes.QWEN3_235B, tensor_parallel_size=2, pipeline_parallel_size=4)
    assert found.bytes_per_token == 24 * 2 * 2 * 128 * 2
    assert [len(stage) for stage in stage_layers(94, 4)] == [23, 24, 24, 23]
    assert [len(stage) for stage in stage_layers(61, 2)] == [31, 30]


def test_hybrid_blocks_grow_until_they_hold_a_state() -> None:
    """Gated delta net at TP4: conv 2560 x 3 x 2 bytes + 12 heads x 128 x 128 x 4 bytes = 801,792
    bytes; a token of one attention layer takes 1,024; so blocks of 49 x 16 tokens."""
    found = cache(shapes.QWEN35_27B, tensor_parallel_size=4)
    assert {group.block_tokens for group in found.groups} == {784}
    assert len(found.groups) == 4  # one of attention, three of states, 16 layers each
    assert found.block_bytes == 16 * 784 * 1024
    # Each request holds one state in each of the three groups.
    assert found.request_blocks(32_768) == 42 + 3


def test_tokens_of_hybrid_models_are_printed_in_two_ways() -> None:
    """Before 0.20.2 the blocks of one group, after it concurrency x max-model-len."""
    room = 7.0 * GIB
    old = cache(shapes.QWEN35_27B, "0.19.0", tensor_parallel_size=4)
    new = cache(shapes.QWEN35_27B, "0.25.1", tensor_parallel_size=4)
    assert old.tokens(room, 32_768) == old.blocks(room) // 4 * 784
    assert new.tokens(room, 32_768) == int(new.concurrency(room, 32_768) * 32_768)
    assert old.concurrency(room, 32_768) == new.concurrency(room, 32_768)


def test_mtp_adds_states_and_a_layer() -> None:
    mtp = {"method": "mtp", "num_speculative_tokens": 3}
    found = cache(shapes.QWEN35_27B, speculative_config=mtp)
    assert found.groups[0].layers == 17
    assert found.request_blocks(1600) == -(-1600 // found.groups[0].block_tokens) + 3 * (1 + 3)


def test_windows_share_the_pool_since_there_is_one() -> None:
    new, old = cache(shapes.GPT_OSS_120B), cache(shapes.GPT_OSS_120B, "0.9.2")
    assert len(new.groups) == 2
    # A window of 128 and the tokens of one step, however long the request.
    assert new.request_blocks(100_000) == 6250 + -(-(127 + 2048) // 16) + 1
    assert old.bytes_per_token == 2 * new.bytes_per_token


def test_context_parallel_multiplies_tokens() -> None:
    one = cache(shapes.DEEPSEEK_V3, tensor_parallel_size=8)
    two = cache(shapes.DEEPSEEK_V3, tensor_parallel_size=8, decode_context_parallel_size=2)
    assert two.tokens(GIB, 4096) == 2 * one.tokens(GIB, 4096)


def test_the_longest_request_fits_and_one_token_more_does_not() -> None:
    found = cache(shapes.QWEN3_32B)
    longest = found.longest(3 * GIB, 40_960)
    assert longest == 3 * GIB // (256 * KIB)
    assert found.concurrency(3 * GIB, longest) >= 1
    assert found.concurrency(3 * GIB, longest + 1) < 1
    assert found.longest(-1.0, 40_960) == 0
    assert found.longest(100 * GIB, 40_960) == 40_960


def test_layouts_say_what_they_are() -> None:
    layout = Layout(4, 2, 2, expert=True)
    assert (layout.gpus, layout.expert_ranks, str(layout)) == (16, 8, "TP4 x PP2 x DP2 + EP")
    assert layout.arguments() == {
        "tensor-parallel-size": 4,
        "pipeline-parallel-size": 2,
        "data-parallel-size": 2,
        "enable-expert-parallel": True,
    }
