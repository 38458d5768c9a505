"""engine.args by version, and the model's precision against what settings say."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.planning.compatibility import ModelFacts, check
from tests.unit.planning_compat.hosts import QWEN3_BF16, QWEN3_FP8, host, ids, settings


def of(vllm: str, model: ModelFacts | None = None, **more: Any) -> Any:
    """Findings with a new driver, so that only vLLM, its arguments and the model count."""
    return check(host(driver_version="615.1"), settings(vllm, **more), model)


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vllm", "args", "expected"),
    [
        ("0.10.0", {"disable-log-requests": True}, None),
        ("0.12.0", {"disable-log-requests": True}, "compat.argument-deprecated"),
        ("0.17.0", {"disable-log-requests": True}, "compat.argument-unknown"),
        ("0.17.1", {"disable-log-requests": True}, "compat.argument-gone"),
        ("0.33.0", {"disable-log-requests": True}, "compat.argument-gone"),
        ("0.17.1", {"swap-space": 4}, None),
        ("0.18.0", {"swap-space": 4}, "compat.argument-gone"),
        ("0.33.0", {"enable-metrics": True}, "compat.argument-never"),
        ("0.16.0", {"numa-bind": True}, "compat.argument-not-yet"),
        ("0.20.0", {"numa-bind": True}, "compat.argument-unknown"),
        ("0.20.2", {"numa-bind": True}, None),
        ("0.33.0", {"enable-prefix-caching": True}, None),
        ("0.33.0", {"no-enable-prefix-caching": True}, None),
        ("0.33.0", {"max-model-lens": 8}, "compat.argument-misspelt"),
        ("0.33.0", {"no-enable-prefix-cachin": True}, "compat.argument-misspelt"),
        ("0.33.0", {"data-parallel-size-local": 2}, None),
        ("0.33.0", {"reasoning-parser-plugin": "x"}, None),
        ("0.33.0", {"something-new": True}, "compat.argument-misspelt"),
        ("0.33.0", {"no-disable-log-stats": True}, "compat.argument-misspelt"),
        ("0.33.0", {"aggregate-engine-logging": 1}, "compat.argument-value"),
        ("0.33.0", {"performance-mode": True}, "compat.argument-value"),
        ("0.33.0", {"mamba-cache-mode": "none"}, "compat.argument-deprecated"),
        ("0.28.0", {"max-num-queued-reqs": 1}, "compat.argument-not-yet"),
        ("0.30.0", {"max-num-queued-reqs": 1}, "compat.argument-unknown"),
        ("0.32.0", {"enable-bf16x3-router-gemm": True}, "compat.argument-gone"),
        ("0.33.0", {"device-memory-utilization": 0.5}, None),
        ("0.33.0", {"compilation-config.cudagraph_mode": "NONE"}, None),
        ("0.11.2", {"rope-scaling": {"factor": 4}}, "compat.argument-gone"),
    ],
)
def test_arguments_by_version(vllm: str, args: dict[str, Any], expected: str | None) -> None:
    found = [i for i in ids(of(vllm, args=args)) if i.startswith("compat.argument")]
    assert found == ([expected] if expected else [])


def test_what_took_its_place_is_named() -> None:
    (finding,) = of("0.33.0", args={"disable-log-requests": True})
    assert "enable-log-requests takes its place" in finding.fix
    assert finding.evidence == "disable-log-requests: true"
    (finding,) = of("0.33.0", args={"rope-scaling": {"factor": 4}})
    assert "hf-overrides" in finding.fix


@pytest.mark.parametrize(
    ("vllm", "device", "args", "severity"),
    [
        ("0.33.0", "cuda", {"disable-log-stats": True}, "warn"),
        ("0.32.0", "cpu", {"tensor-parallel-size": 2, "enable-expert-parallel": True}, "refuse"),
        ("0.32.0", "cuda", {"tensor-parallel-size": 2, "enable-expert-parallel": True}, None),
        ("0.32.0", "cpu", {"tensor-parallel-size": 1, "enable-expert-parallel": True}, None),
        ("0.33.0", "cuda", {"dtype": "float16"}, "note"),
        ("0.33.0", "cuda", {"dtype": "auto"}, None),
        ("0.8.5", "cuda", {"gpu-memory-utilization": 0.95}, "warn"),
        ("0.9.2", "cuda", {"gpu-memory-utilization": 0.95}, None),
        ("0.8.5", "cuda", {"gpu-memory-utilization": 0.9}, None),
        ("0.33.0", "cuda", {"enforce-eager": True}, "note"),
        ("0.33.0", "cpu", {"enforce-eager": True}, None),
        ("0.33.0", "cuda", {"enable-log-requests": True}, "warn"),
        ("0.33.0", "cuda", {"runner": "pooling"}, "refuse"),
        ("0.33.0", "cuda", {"runner": "generate"}, None),
        ("0.11.2", "cuda", {"task": "embed"}, "refuse"),
    ],
)
def test_combinations(vllm: str, device: str, args: dict[str, Any], severity: str | None) -> None:
    found = [f for f in of(vllm, args=args, device=device) if f.id == "compat.argument-combination"]
    assert [f.severity for f in found] == ([severity] if severity else [])


# ---- variant -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "model", "fits"),
    [
        ("fp8", QWEN3_FP8, True),
        ("bf16", QWEN3_FP8, False),
        ("awq", QWEN3_FP8, False),
        ("bf16", QWEN3_BF16, True),
        ("fp16", QWEN3_BF16, False),
        ("fp8", QWEN3_BF16, False),
        ("awq", ModelFacts("LlamaForCausalLM", "llama", "awq"), True),
        ("gptq", ModelFacts("LlamaForCausalLM", "llama", "gptq"), True),
        ("mxfp4", ModelFacts("GptOssForCausalLM", "gpt_oss", "mxfp4"), True),
        ("awq", ModelFacts("LlamaForCausalLM", "llama", "compressed-tensors", 4, False), True),
        ("fp8", ModelFacts("LlamaForCausalLM", "llama", "compressed-tensors", 8, True), True),
        ("int8", ModelFacts("LlamaForCausalLM", "llama", "compressed-tensors", 8, True), False),
        ("fp8", ModelFacts("LlamaForCausalLM", "llama", "compressed-tensors"), True),
    ],
)
def test_the_variant_is_what_settings_say(variant: str, model: ModelFacts, fits: bool) -> None:
    found = ids(of("0.33.0", model, said={"variant": variant}), "refuse")
    assert found == ([] if fits else ["model.variant-differs"])


def test_quantised_by_the_engine_counts_as_quantised() -> None:
    found = of("0.33.0", QWEN3_BF16, said={"variant": "fp8"}, args={"quantization": "fp8"})
    assert "model.variant-differs" not in ids(found)


def test_a_quantised_model_is_stated_and_accepted_or_warned_of() -> None:
    unsaid = of("0.33.0", QWEN3_FP8, said={"quantization_accepted_for": None})
    assert ids(unsaid, "warn") == ["model.variant-not-stated", "model.quantization-not-accepted"]
    assert ids(of("0.33.0", QWEN3_FP8, said={"variant": "fp8"})) == []
    assert ids(of("0.33.0", QWEN3_BF16, said={"quantization_accepted_for": None})) == []
