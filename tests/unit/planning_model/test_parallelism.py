"""Which layouts are refused, with which reason and fix, and which are offered first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.facts.hardware import Gpu
from pyinfra_deploy.planning.parallelism import all_layouts, candidate_layouts, check_choice
from tests.unit.planning_model import shapes
from tests.unit.planning_model.shapes import h100, ids, l20, shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyinfra_deploy.planning.finding import Finding

# What group_vars/prod.yml of this repository asks for.
PROD: dict[str, Any] = {
    "tensor-parallel-size": 8,
    "enable-expert-parallel": True,
    "max-model-len": 16384,
    "gpu-memory-utilization": 0.90,
    "max-num-seqs": 256,
    "dtype": "auto",
}
WITHOUT_EP = {key: value for key, value in PROD.items() if key != "enable-expert-parallel"}
FOUR_BY_TWO = {**WITHOUT_EP, "tensor-parallel-size": 4, "pipeline-parallel-size": 2}


def found(
    config: dict[str, Any], args: dict[str, Any], version: str | None, gpus: Sequence[Gpu] = ()
) -> tuple[Finding, ...]:
    return check_choice(shape(config), gpus or l20(), args, version, host="h1")[1]


def one(findings: tuple[Finding, ...], identity: str) -> Finding:
    (single,) = [finding for finding in findings if finding.id == identity]
    return single


@pytest.mark.parametrize("version", ["0.8.5.post1", "0.10.2", "0.26.0", "0.26.1"])
def test_tp8_alone_cuts_fp8_blocks_up_to_0_26(version: str) -> None:
    refusal = one(found(shapes.QWEN3_235B_FP8, WITHOUT_EP, version), "parallel.fp8-blocks")
    assert refusal.severity == "refuse"
    assert "192" in refusal.message
    assert "enable-expert-parallel: true" in refusal.fix
    assert "tensor-parallel-size: 4 with pipeline-parallel-size: 2" in refusal.fix
    assert "vllm#17569" in refusal.source


@pytest.mark.parametrize("version", ["0.27.0", "0.28.0", "0.32.1", None])
def test_between_the_known_versions_it_is_not_known(version: str | None) -> None:
    findings = found(shapes.QWEN3_235B_FP8, WITHOUT_EP, version)
    assert one(findings, "parallel.fp8-blocks-unknown").severity == "warn"
    assert not ids(findings, "refuse")


def test_0_33_cuts_the_scales_finer_where_32_divides() -> None:
    findings = found(shapes.QWEN3_235B_FP8, WITHOUT_EP, "0.33.0")
    assert not ids(findings, "refuse", "warn")
    assert "blocks of 64" in one(findings, "parallel.fp8-blocks-refined").message
    # 640 / 8 = 80 has only 16 in common with 128.
    narrow = {**shapes.QWEN3_235B_FP8, "moe_intermediate_size": 640}
    assert "parallel.fp8-blocks" in ids(found(narrow, WITHOUT_EP, "0.33.0"), "refuse")
    packed = {
        **shapes.QWEN3_235B,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {"g": {"weights": {"num_bits": 8, "block_structure": [128, 128]}}},
        },
    }
    # The compressed-tensors code path has no such refinement.
    assert "parallel.fp8-blocks" in ids(found(packed, WITHOUT_EP, "0.33.0"), "refuse")


@pytest.mark.parametrize("version", ["0.10.2", "0.26.0", "0.30.0", "0.33.0"])
@pytest.mark.parametrize("args", [PROD, FOUR_BY_TWO])
def test_both_fixes_are_accepted_on_eight_l20(args: dict[str, Any], version: str) -> None:
    budget, findings = check_choice(shape(shapes.QWEN3_235B_FP8), l20(), args, version, host="h1")
    assert not ids(findings, "refuse", "warn")
    assert budget is not None
    assert budget.requests is not None
    assert budget.requests.low >= 1
    assert budget.cache_bytes_per_token == (48_128 if args is PROD else 24_064)


@pytest.mark.parametrize("gpus", [4, 8])
def test_tp4_on_l20_does_not_hold_the_weights(gpus: int) -> None:
    findings = found(
        shapes.QWEN3_235B_FP8, {**WITHOUT_EP, "tensor-parallel-size": 4}, "0.33.0", l20(gpus)
    )
    assert ids(findings, "refuse") == {"memory.weights-do-not-fit"}
    assert "parallel.gpus-unused" in ids(findings, "note") or gpus == 4


@pytest.mark.parametrize(
    ("config", "args", "identity"),
    [
        (
            {**shapes.QWEN3_32B, "num_attention_heads": 28},
            {"tensor-parallel-size": 8},
            "parallel.heads",
        ),
        (
            {**shapes.LLAMA3_70B, "num_key_value_heads": 6},
            {"tensor-parallel-size": 4},
            "parallel.kv-heads",
        ),
        (shapes.QWEN35_27B, {"tensor-parallel-size": 3}, "parallel.linear-heads"),
        (shapes.QWEN3_32B, {"enable-expert-parallel": True}, "parallel.no-experts"),
        (shapes.QWEN3_32B, {"tensor-parallel-size": 16}, "parallel.too-many-ranks"),
        (
            {**shapes.QWEN3_235B, "num_experts": 4},
            {"tensor-parallel-size": 8, "enable-expert-parallel": True},
            "parallel.experts",
        ),
        (
            {**shapes.QWEN3_235B, "moe_intermediate_size": 1532},
            {"tensor-parallel-size": 8},
            "parallel.expert-width",
        ),
        (
            {**shapes.QWEN3_32B, "num_hidden_layers": 4},
            {"pipeline-parallel-size": 8},
            "parallel.layers",
        ),
        (
            {**shapes.LLAMA2_70B_AWQ, "intermediate_size": 29568},
            {"tensor-parallel-size": 8},
            "parallel.scale-groups",
        ),
        (
            {**shapes.QWEN3_32B, "quantization_config": shapes.FP8, "intermediate_size": 25088},
            {"tensor-parallel-size": 8},
            "parallel.fp8-blocks-linear",
        ),
        (
            shapes.QWEN3_235B,
            {"tensor-parallel-size": 8, "decode-context-parallel-size": 4},
            "parallel.context-parallel",
        ),
    ],
)
def test_illegal_layouts(config: dict[str, Any], args: dict[str, Any], identity: str) -> None:
    findings = found(config, {"max-model-len": 1024, **args}, "0.33.0")
    refusal = one(findings, identity)
    assert refusal.severity == "refuse"
    assert refusal.fix
    assert refusal.evidence


QWEN25_1B5: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
PHI3_MEDIUM: dict[str, Any] = {
    **QWEN25_1B5,
    "architectures": ["Phi3ForCausalLM"],
    "hidden_size": 5120,
    "intermediate_size": 17920,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 10,
    "vocab_size": 32064,
}


@pytest.mark.parametrize(
    ("config", "tensor", "refused", "instead"),
    [
        # 8960 / 6 and 151936 / 6 are no whole numbers; heads and KV heads are fine.
        (QWEN25_1B5, 6, {"parallel.vocabulary", "parallel.width"}, 4),
        # 32064 = 64 x 501 and 17920 = 5 x 3584; TP4 would not do, for the ten KV heads.
        (PHI3_MEDIUM, 5, {"parallel.vocabulary"}, 2),
        # 32003 is rounded up to 32064, which 3 divides.
        ({**PHI3_MEDIUM, "num_attention_heads": 42, "num_key_value_heads": 42,
          "intermediate_size": 17919, "vocab_size": 32003}, 3, set(), 0),
        ({**QWEN25_1B5, "intermediate_size": 8962, "num_attention_heads": 16}, 4,
         {"parallel.width"}, 2),
        # Said once, as what it is, where the weights are quantised too.
        ({**shapes.QWEN3_32B, "quantization_config": shapes.FP8, "intermediate_size": 25604}, 8,
         {"parallel.width"}, 4),
        ({**shapes.LLAMA2_70B_AWQ, "intermediate_size": 28676}, 8, {"parallel.width"}, 4),
    ],
)  # fmt: skip
def test_vocabulary_and_width_are_cut_evenly_or_not_at_all(
    config: dict[str, Any], tensor: int, refused: set[str], instead: int
) -> None:
    args = {"tensor-parallel-size": tensor, "max-model-len": 1024}
    findings = found(config, args, "0.33.0")
    about = {"parallel.vocabulary", "parallel.width", "parallel.fp8-blocks-linear",
             "parallel.scale-groups", "parallel.heads", "parallel.kv-heads"}  # fmt: skip
    assert ids(findings, "refuse") & about == refused
    for identity in refused:
        assert f"tensor-parallel-size to {instead}," in one(findings, identity).fix


def test_shared_experts_are_cut_unless_copies_may_keep_them_whole() -> None:
    config = {**shapes.DEEPSEEK_V3, "moe_intermediate_size": 1028, "quantization_config": None}
    args = {"tensor-parallel-size": 8, "enable-expert-parallel": True}
    assert "parallel.width" in ids(found(config, args, "0.33.0", h100(16)), "refuse")
    copies = found(config, {**args, "data-parallel-size": 2}, "0.33.0", h100(16))
    assert one(copies, "parallel.width").severity == "warn"


@pytest.mark.parametrize(("version", "warned"), [("0.13.0", True), ("0.14.0", False), (None, True)])
def test_fp8_blocks_of_a_ranks_kv_heads(version: str | None, warned: bool) -> None:
    """Heads of 64 and one KV head a rank: 64 columns are no block of 128."""
    config = {**shapes.QWEN3_32B, "quantization_config": shapes.FP8, "head_dim": 64}
    args = {"tensor-parallel-size": 8}
    said = [one.message for one in found(config, args, version)
            if one.id == "parallel.fp8-blocks-linear"]  # fmt: skip
    assert [message for message in said if message.startswith("KV heads")] == (
        ["KV heads x head_dim 512 over 8 GPUs is 64 each, not a multiple of the FP8 block of 128; "
         "vLLM stops there if the checkpoint has these layers in FP8."] if warned else []
    )  # fmt: skip
    assert not any(one.id == "parallel.fp8-blocks-linear" for one in
                   found(config, {"tensor-parallel-size": 4}, version))  # fmt: skip


def test_dense_layers_are_cut_whatever_the_experts_do() -> None:
    """DeepSeek-V3 over 32 GPUs: 18432 / 32 = 576."""
    args = {"tensor-parallel-size": 32, "enable-expert-parallel": True}
    findings = found(shapes.DEEPSEEK_V3, args, "0.33.0", h100(32))
    assert "parallel.fp8-blocks-linear" in ids(findings, "refuse")
    assert (
        "576"
        in one(
            tuple(finding for finding in findings if finding.severity == "refuse"),
            "parallel.fp8-blocks-linear",
        ).message
    )


def test_pipelines_that_a_version_does_not_have() -> None:
    args = {"tensor-parallel-size": 8, "pipeline-parallel-size": 2}
    gpus = h100(16)
    old = found(shapes.DEEPSEEK_V3, args, "0.6.6", gpus)
    assert one(old, "parallel.pipeline-unsupported").severity == "refuse"
    between = found(shapes.DEEPSEEK_V3, args, "0.7.1", gpus)
    assert one(between, "parallel.pipeline-unknown").severity == "warn"
    new = found(shapes.DEEPSEEK_V3, {**args, "max-model-len": 8192}, "0.33.0", gpus)
    assert not ids(new, "refuse")
    assert one(new, "parallel.layers-uneven").severity == "note"


def test_layers_over_stages_that_do_not_divide_are_a_note() -> None:
    findings = found(shapes.QWEN3_235B_FP8, {**FOUR_BY_TWO, "pipeline-parallel-size": 1}, "0.33.0")
    assert "parallel.layers-uneven" not in ids(findings)


def test_replicated_kv_heads_are_said() -> None:
    note = one(found(shapes.QWEN3_235B_FP8, PROD, "0.33.0"), "parallel.kv-replicated")
    assert "kept 2 times" in note.message


def test_context_beyond_what_the_model_was_made_for() -> None:
    args = {"tensor-parallel-size": 8, "max-model-len": 131072}
    refusal = one(found(shapes.QWEN3_32B, args, "0.33.0"), "model.context-too-long")
    assert "40960" in refusal.message
    assert "YaRN" in refusal.fix
    asked = {**args, "hf-overrides": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}}
    assert "model.context-too-long" not in ids(found(shapes.QWEN3_32B, asked, "0.33.0"))


def test_one_request_that_cannot_fit_names_what_would() -> None:
    args = {"max-model-len": 40960, "gpu-memory-utilization": 0.9, "max-num-seqs": 64}
    findings = found(shapes.QWEN3_32B, args, "0.33.0", h100(1))
    refusal = one(findings, "memory.context-does-not-fit")
    assert refusal.severity == "refuse"
    assert "set max-model-len to" in refusal.fix


def test_no_gpu_and_unlike_gpus_and_silent_gpus() -> None:
    assert ids(check_choice(shape(shapes.QWEN3_32B), [], {}, "0.33.0")[1]) == {"parallel.no-gpus"}
    args = {"tensor-parallel-size": 2}
    mixed, _ = check_choice(shape(shapes.QWEN3_32B), [*h100(1), *l20(1)], args, "0.33.0")
    assert mixed is not None
    assert mixed.gpu_name == "NVIDIA L20"  # the smallest decides
    silent = [Gpu(0, "NVIDIA L20")]
    budget, findings = check_choice(shape(shapes.QWEN3_32B), silent, {}, "0.33.0", host="h1")
    assert budget is None
    assert "memory.gpu-unknown" in ids(findings, "warn")


@pytest.mark.parametrize(
    "args",
    [
        {"tensor-parallel-size": "8"},
        {"tensor-parallel-size": 0},
        {"gpu-memory-utilization": 95},
        {"max-model-len": -5},
        {"max-num-seqs": True},
        {"speculative-config": "{"},
        {"cpu-offload-gb": "x"},
        {"kv-cache-dtype": 8},
    ],
)
def test_arguments_of_the_wrong_kind_are_refused_not_crashed_on(args: dict[str, Any]) -> None:
    findings = found(shapes.QWEN3_32B, args, "0.33.0")
    assert one(findings, "engine.argument-value").subject == f"engine.args.{next(iter(args))}"


@pytest.mark.parametrize("config", [shapes.QWEN3_235B_FP8, shapes.DEEPSEEK_V3, shapes.QWEN35_27B])
def test_absurd_layouts_end_in_a_refusal_at_once(config: dict[str, Any]) -> None:
    for key in ("tensor", "pipeline", "data"):
        findings = found(config, {f"{key}-parallel-size": 10**14}, "0.26.0")
        assert "parallel.too-many-ranks" in ids(findings, "refuse")


def test_lengths_in_human_form() -> None:
    for text, tokens in (("16k", 16000), ("16K", 16384), (16384, 16384)):
        args = {"tensor-parallel-size": 8, "max-model-len": text}
        budget, _ = check_choice(shape(shapes.QWEN3_32B), l20(), args, "0.33.0")
        assert budget is not None
        assert budget.max_model_len == tokens


def test_all_layouts_of_eight_gpus() -> None:
    layouts = candidate_layouts(8, experts=False)
    # The sum of the numbers of divisors' divisors up to 8.
    assert len(layouts) == len(set(layouts)) == 1 + 3 + 3 + 6 + 3 + 9 + 3 + 10
    assert {layout.gpus for layout in layouts} == set(range(1, 9))
    assert candidate_layouts(0, experts=True) == ()


def test_seven_gpus_have_the_layouts_that_leave_some_idle() -> None:
    """With a card lost: 7 divides neither heads nor widths, and TP4 still serves."""
    verdicts = all_layouts(shape(shapes.QWEN3_32B), l20(7), {"max-model-len": 16384}, "0.33.0")
    fitting = [one for one in verdicts if one.legal and one.fits == 0]
    names = [str(one.layout) for one in fitting]
    # Nothing is cut by 3, 5 or 7; one stage before several, then few idle GPUs before many.
    assert names[:2] == ["TP2 x DP3", "TP4"]
    four = next(one for one in fitting if str(one.layout) == "TP4")
    assert four.idle == 3
    assert "3 GPUs idle" in four.why
    stages = [one.layout.pipeline for one in fitting]
    assert stages == sorted(stages)
    seven = next(one for one in verdicts if str(one.layout) == "TP7")
    assert "64 attention heads" in seven.reasons[0]
    assert seven.budget is None


def test_the_order_of_layouts_and_its_reasons() -> None:
    verdicts = all_layouts(shape(shapes.QWEN3_235B_FP8), l20(), PROD, "0.26.0", host="h1")
    by_name = {str(verdict.layout): verdict for verdict in verdicts}
    assert str(verdicts[0].layout) == "TP8 + EP"
    assert not by_name["TP8"].legal
    assert "192" in by_name["TP8"].reasons[0]
    assert by_name["TP4 x PP2"].legal
    assert "weights do not fit" in by_name["TP4"].reasons[0]
    legal = [verdict.legal for verdict in verdicts]
    assert legal == sorted(legal, reverse=True)
    assert "fits" in verdicts[0].why
    assert "on 2 GPUs each" in verdicts[0].why


def test_the_bus_decides_between_layouts_that_fit() -> None:
    args = {"max-model-len": 8192, "gpu-memory-utilization": 0.9, "max-num-seqs": 64}
    small = {**shapes.LLAMA3_70B, "num_hidden_layers": 32, "hidden_size": 4096}
    near = all_layouts(shape(small), l20(), args, "0.33.0", shapes.two_sockets())
    assert near[0].layout.tensor < 8
    assert near[0].link is not None
    assert near[0].link < 5
    assert all_layouts(shape(small), l20(), args, "0.33.0")[0].link is None
    _, findings = check_choice(
        shape(small), l20(), {**args, "tensor-parallel-size": 8}, "0.33.0", shapes.two_sockets()
    )
    assert one(findings, "parallel.crosses-numa").severity == "note"
