"""The budget: what torch sees, what is granted, what is left; and the engine's own figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyinfra_deploy.facts.hardware import Gpu
from pyinfra_deploy.planning.engine_choice import batch_of, parse_version, read_choice
from pyinfra_deploy.planning.engine_log import EngineFigures, read_engine_log
from pyinfra_deploy.planning.gpu_memory import usable_bytes
from pyinfra_deploy.planning.layout import Layout
from pyinfra_deploy.planning.memory import MemoryBudget, budget, loaded_bytes, measured
from pyinfra_deploy.planning.memory_rules import memory_findings
from tests.unit.planning_model import shapes
from tests.unit.planning_model.shapes import h100, ids, l20, shape

GIB = 2**30


def plan(config: dict[str, Any], gpu: Gpu, version: str, **args: Any) -> MemoryBudget:
    choice, _ = read_choice({key.replace("_", "-"): value for key, value in args.items()})
    found = budget(shape(config), gpu, choice.layout, choice, version)
    assert found is not None
    return found


def test_what_torch_sees_is_total_minus_reserved() -> None:
    gpu = Gpu(0, "NVIDIA H100 80GB HBM3", memory_total_mib=81559, memory_reserved_mib=479)
    seen = usable_bytes(gpu)
    assert seen is not None
    assert seen.middle / GIB == pytest.approx(79.18, abs=0.005)


@pytest.mark.parametrize(
    ("name", "mib", "gib"),
    [
        ("NVIDIA L20", 46068, 44.53),
        ("NVIDIA L40S", 46068, 44.42),
        ("NVIDIA H100 80GB HBM3", 81559, 79.18),
        ("NVIDIA A100-SXM4-80GB", 81920, 79.25),
        ("NVIDIA GeForce RTX 3090", 24576, 23.58),
    ],
)
def test_recorded_totals(name: str, mib: int, gib: float) -> None:
    seen = usable_bytes(Gpu(0, name, memory_total_mib=mib))
    assert seen is not None
    assert seen.middle / GIB == pytest.approx(gib)
    other = usable_bytes(Gpu(0, "Some Other Card", memory_total_mib=mib))
    assert other is not None
    assert other.low / GIB < gib < other.high / GIB


def test_a_product_string_that_lies_is_not_believed() -> None:
    # An "L20X" is a device of the H200 class.
    seen = usable_bytes(Gpu(0, "NVIDIA L20X", memory_total_mib=143771))
    assert seen is not None
    assert seen.middle / GIB == pytest.approx(139.9, abs=0.2)


def test_the_vocabulary_is_padded_to_64_whatever_the_layout() -> None:
    """VocabParallelEmbedding: 32,001 rows are 32,064, over 8 GPUs 4,008 each, not 4,032."""
    config = {**shapes.LLAMA3_70B, "vocab_size": 32001, "num_hidden_layers": 1}
    choice, _ = read_choice({})
    eight = loaded_bytes(shape(config), Layout(8), choice)
    wider = loaded_bytes(shape({**config, "vocab_size": 32064}), Layout(8), choice)
    # The embedding and the output layer are rounded up to the same rows.
    assert wider == pytest.approx(eight)
    assert loaded_bytes(shape({**config, "vocab_size": 32065}), Layout(8), choice) > wider


def test_weights_per_gpu() -> None:
    def size(config: dict[str, Any], layout: Layout) -> float:
        choice, _ = read_choice({})
        return loaded_bytes(shape(config), layout, choice) / GIB

    whole = size(shapes.QWEN3_235B_FP8, Layout())
    # TP8 keeps K and V projections twice, and norms and routers on every GPU: 0.1 to 1.4% more.
    assert 1.001 < size(shapes.QWEN3_235B_FP8, Layout(8)) * 8 / whole < 1.014
    assert size(shapes.QWEN3_235B_FP8, Layout(8, expert=True)) * 8 / whole < 1.014
    # 94 layers: 47 and the embedding, 47 and the output layer.
    assert size(shapes.QWEN3_235B_FP8, Layout(4, 2)) * 8 / whole == pytest.approx(1.0, abs=0.01)
    # Copies hold all of the attention, and share the experts.
    assert size(shapes.QWEN3_235B_FP8, Layout(4, 1, 2)) > size(shapes.QWEN3_235B_FP8, Layout(8))
    # MLA's down-projections are on every rank.
    deepseek = size(shapes.DEEPSEEK_V3, Layout(8, expert=True)) * 8
    assert 1.004 < deepseek / size(shapes.DEEPSEEK_V3, Layout()) < 1.02


def test_uneven_stages_the_fullest_decides() -> None:
    choice, _ = read_choice({})
    two = loaded_bytes(shape(shapes.DEEPSEEK_V3), Layout(8, 2), choice)
    one = loaded_bytes(shape(shapes.DEEPSEEK_V3), Layout(8), choice)
    assert two > one / 2


def test_mtp_layers_are_loaded_for_speculation_only() -> None:
    plain, _ = read_choice({})
    mtp, _ = read_choice({"speculative-config": {"method": "mtp", "num_speculative_tokens": 1}})
    model = shape(shapes.DEEPSEEK_V3)
    more = loaded_bytes(model, Layout(8), mtp) - loaded_bytes(model, Layout(8), plain)
    assert 1.2 * GIB < more < 1.6 * GIB  # 11.5e9 weights of one layer, in FP8, over 8


def test_online_fp8_halves_the_linear_layers() -> None:
    choice, _ = read_choice({"quantization": "fp8"})
    size = loaded_bytes(shape(shapes.QWEN3_32B), Layout(), choice) / GIB
    assert size == pytest.approx((65.52 - 2 * 1.556) / 2 / 1.0737 + 2 * 1.556 / 1.0737, rel=0.01)


def test_defaults_follow_gpu_and_version() -> None:
    choice, _ = read_choice({})
    big, small = 79 * GIB, 44 * GIB

    def batch(gpu: str, size: int, version: str, length: int = 16384) -> tuple[int, int]:
        found = batch_of(choice, parse_version(version), gpu, size, length)
        return found.tokens, found.requests

    assert batch("H100", big, "0.11.0") == (8192, 1024)
    assert batch("A100-SXM4-80GB", big, "0.11.0") == (2048, 256)
    assert batch("L20", small, "0.33.0") == (2048, 256)
    assert batch("B200", 178 * GIB, "0.33.0") == (16384, 1024)
    # V0 read a whole prompt in one step, up to a length of 32k.
    assert batch("L20", small, "0.6.3", 29000) == (29000, 256)
    assert batch("L20", small, "0.6.3", 40000) == (2048, 256)
    assert choice.utilization_for(parse_version("0.20.0")) == 0.9
    assert choice.utilization_for(parse_version("0.22.1")) == 0.92


# Starts whose figures are in public threads, none of which any constant was taken from.
OUTSIDE = [
    # vllm-project/vllm#10511: Meta-Llama-3-8B, V0, 79.22 GiB, one GPU and TP2.
    ({**shapes.LLAMA3_70B, "hidden_size": 4096, "intermediate_size": 14336,
      "num_hidden_layers": 32, "num_attention_heads": 32}, 79.22, "0.6.4", 1, 53.29),
    ({**shapes.LLAMA3_70B, "hidden_size": 4096, "intermediate_size": 14336,
      "num_hidden_layers": 32, "num_attention_heads": 32}, 79.22, "0.6.4", 2, 58.97),
    # vllm-project/vllm#21489: gemma-3-4b-it on a B200 of 178.36 GiB: 8.58 of weights, 9.96 peak.
    ({**shapes.GEMMA3_27B, "text_config": {**shapes.GEMMA3_27B["text_config"],
      "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
      "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}},
     178.36, "0.10.1", 1, 141.92),
]  # fmt: skip


@pytest.mark.parametrize(("config", "gib", "version", "tensor", "real"), OUTSIDE)
def test_starts_that_no_constant_came_from(
    config: dict[str, Any], gib: float, version: str, tensor: int, real: float
) -> None:
    total = round(gib * 1024)
    gpu = Gpu(0, "H100", memory_total_mib=total + 1, memory_reserved_mib=1)
    found = plan(config, gpu, version, tensor_parallel_size=tensor, gpu_memory_utilization=0.9)
    assert found.available.low / GIB <= real <= found.available.high / GIB
    assert abs(found.available.middle / GIB - real) < 0.05 * gib


def test_more_in_a_batch_leaves_less() -> None:
    small = plan(shapes.QWEN3_32B, h100(1)[0], "0.33.0", max_num_batched_tokens=2048)
    large = plan(shapes.QWEN3_32B, h100(1)[0], "0.33.0", max_num_batched_tokens=65536)
    assert large.available.middle < small.available.middle


def test_a_fixed_cache_is_taken_at_its_word() -> None:
    found = plan(shapes.QWEN3_32B, h100(1)[0], "0.33.0", kv_cache_memory_bytes=4 * GIB)
    assert found.available == (4 * GIB, 4 * GIB, 4 * GIB)


def test_numbers_that_an_operator_reads() -> None:
    found = plan(
        shapes.QWEN3_235B_FP8,
        l20(1)[0],
        "0.33.0",
        tensor_parallel_size=8,
        enable_expert_parallel=True,
        max_model_len=16384,
        gpu_memory_utilization=0.9,
        max_num_seqs=256,
    )
    assert found.request_bytes == 16384 * 48128
    assert found.tokens is not None
    assert found.typical_requests is not None
    assert found.tokens.low < found.tokens.middle < found.tokens.high
    assert found.typical_tokens == 2048
    assert found.typical_requests.middle == pytest.approx(found.tokens.middle / 2048, rel=0.001)
    assert found.source == "estimate"
    assert not memory_findings(found, "h1")


V1_LOG = """\
(APIServer pid=1) INFO 09-01 10:00:01 [utils.py:297] vLLM API server version 0.33.0
(Worker_TP0_EP0 pid=7) INFO 09-01 10:20:01 [model_runner.py:429] Model loading took 27.61 GiB memory and 812.1 seconds
(Worker_TP1_EP1 pid=8) INFO 09-01 10:20:01 [model_runner.py:429] Model loading took 27.63 GiB memory and 812.3 seconds
(Worker_TP0_EP0 pid=7) INFO 09-01 10:21:01 [gpu_worker.py:773] Available KV cache memory: 9.12 GiB
(Worker_TP1_EP1 pid=8) INFO 09-01 10:21:01 [gpu_worker.py:773] Available KV cache memory: 9.08 GiB
\x1b[36m(EngineCore pid=5)\x1b[0;0m INFO 09-01 10:21:02 [kv_cache_utils.py:1149] GPU KV cache size: 202,576 tokens, Maximum concurrency for 16,384 tokens per request: 12.36x
(Worker_TP0_EP0 pid=7) INFO 09-01 10:22:02 [model_runner.py:1371] Graph capturing finished in 18 secs, took 0.71 GiB
"""  # noqa: E501


def test_figures_of_a_new_log() -> None:
    figures = read_engine_log(V1_LOG)
    assert figures == EngineFigures(
        vllm_version="0.33.0",
        weights_bytes=27.63 * GIB,
        available_bytes=9.08 * GIB,
        tokens=202_576,
        concurrency=12.36,
        max_model_len=16_384,
        graph_bytes=0.71 * GIB,
    )
    assert figures.complete


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("Loading model weights took 14.9888 GB", "weights_bytes", 14.9888 * GIB),
        ("Model loading took 15.2683 GB and 3.1 seconds", "weights_bytes", 15.2683 * GIB),
        ("Model loading took 61.03 GiB and 9.2 seconds", "weights_bytes", 61.03 * GIB),
        ("model weights take 14.96GiB", "weights_bytes", 14.96 * GIB),
        ("the rest of the memory reserved for KV Cache is 2.89GiB", "available_bytes", 2.89 * GIB),
        ("available_kv_cache_memory    53.29GiB", "available_bytes", 53.29 * GIB),
        ("Available KV cache memory: -1.25 GiB", "available_bytes", -1.25 * GIB),
        ("# GPU blocks: 1478, # CPU blocks: 2048", "tokens", 1478 * 16),
        ("# cuda blocks: 100, # CPU blocks: 1", "tokens", 1600),
        ("GPU KV cache size: 178,880 tokens", "tokens", 178_880),
        ("Maximum concurrency for 40960 tokens per request: 22.23x", "concurrency", 22.23),
        ("Initializing a V1 LLM engine (v0.8.5.post1) with config", "blocks", None),
        ("Initializing a V1 LLM engine (v0.8.5.post1) with config", "vllm_version", "0.8.5.post1"),
        ("vLLM server version 0.32.0, serving model /srv/llm/m", "vllm_version", "0.32.0"),
        ("vLLM API server version 0.6.3.post1", "vllm_version", "0.6.3.post1"),
        ("Auto set (5.62/31.17) GiB for KV cache on node 0, with 8.0 GiB requested memory for the "
         "worker. 2.38 GiB memory was consumed by non-kv usages.", "available_bytes", 5.62 * GIB),
        ("Explicitly set (1.0/31.17) GiB for KV cache on node 0.", "available_bytes", 1.0 * GIB),
        ("CPU KV cache size: 23,808 tokens, Maximum concurrency for 1,024 tokens per request: "
         "23.25x", "tokens", 23_808),
    ],
)  # fmt: skip
def test_figures_of_other_logs(line: str, name: str, value: float | str | None) -> None:
    assert getattr(read_engine_log([line]), name) == value


def test_of_several_starts_the_last_counts_and_of_none_nothing() -> None:
    second = V1_LOG.replace("9.08", "5.00").replace("202,576", "111,104")
    figures = read_engine_log(V1_LOG + second)
    assert (figures.available_bytes, figures.tokens) == (5.0 * GIB, 111_104)
    assert read_engine_log("") == EngineFigures()
    assert not read_engine_log("Model loading took 1 GiB").complete


def test_own_figures_replace_the_estimate() -> None:
    args = {"tensor_parallel_size": 8, "enable_expert_parallel": True, "max_model_len": 16384}
    estimate = plan(shapes.QWEN3_235B_FP8, l20(1)[0], "0.33.0", **args)
    real = measured(estimate, read_engine_log(V1_LOG))
    assert real.source == "measured"
    assert real.available.low == real.available.high == 9.08 * GIB
    assert real.weights_bytes == 27.63 * GIB
    assert real.tokens is not None
    assert real.tokens.low == real.tokens.high
    assert real.tokens.middle == pytest.approx(202_576, rel=0.002)
    assert measured(estimate, EngineFigures()) == estimate


def test_own_figures_can_refuse_what_the_estimate_allowed() -> None:
    estimate = plan(shapes.QWEN3_32B, h100(1)[0], "0.33.0", max_model_len=16384)
    real = measured(estimate, EngineFigures(available_bytes=1.5 * GIB, tokens=6144))
    assert ids(memory_findings(real, "h1")) == {"memory.context-does-not-fit"}


def test_gpus_of_unknown_memory_get_no_budget() -> None:
    choice, _ = read_choice({})
    gpu = replace(l20(1)[0], memory_total_mib=None)
    assert budget(shape(shapes.QWEN3_32B), gpu, Layout(), choice, "0.33.0") is None
