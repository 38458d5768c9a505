"""The weights' precision: what the GPUs can compute, and what settings say was meant."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyinfra_deploy.planning import tables
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.gpu_table import capability_of, named
from pyinfra_deploy.planning.runtime_facts import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.version import Version

    from pyinfra_deploy.facts.hardware import Gpu, Hardware
    from pyinfra_deploy.planning.compatibility import ModelFacts
    from pyinfra_deploy.planning.tables.rows import Quantisation
    from pyinfra_deploy.settings.schema import Model, Settings

# model.variant -> the methods (keys of the table) that are it.
VARIANTS: dict[str, frozenset[str]] = {
    "fp8": frozenset({"fp8", "fp8-blocks", "fbgemm_fp8", "compressed-tensors-fp8", "modelopt"}),
    "int8": frozenset({"compressed-tensors-int8", "experts_int8"}),
    "awq": frozenset({"awq", "awq_marlin", "auto_awq", "compressed-tensors-int4"}),
    "gptq": frozenset({"gptq", "gptq_marlin", "auto_gptq", "compressed-tensors-int4"}),
    "mxfp4": frozenset({"mxfp4", "gpt_oss_mxfp4"}),
    "nvfp4": frozenset({"modelopt_fp4", "compressed-tensors-nvfp4"}),
}
_DTYPES = {"bf16": ("bfloat16",), "fp16": ("float16", "half")}
_ALIASES = {"auto_awq": "awq", "auto_gptq": "gptq", "gpt_oss_mxfp4": "mxfp4"}


def precision_findings(
    hardware: Hardware,
    settings: Settings,
    model: ModelFacts | None,
    vllm: Version,
    judge_gpus: bool = True,
) -> Iterator[Finding]:
    if model is None or settings.model is None or settings.runtime is None:
        return
    online = settings.engine.args.get("quantization")
    method = method_of(model, online if isinstance(online, str) else None)
    yield from _variant(hardware.host, settings.model, model, method)
    if settings.runtime.device != "cuda" or not hardware.gpus or not judge_gpus:
        return
    if method is not None:
        yield from _quantised(hardware, method, vllm)
    yield from _dtype(hardware, settings, model, method)


def method_of(model: ModelFacts, online: str | None = None) -> str | None:
    """The key of the quantisation table, None for a model that is not quantised. `online`: the
    engine's own argument, which counts where config.json says nothing."""
    method = (model.quant_method or online or "").lower()
    if not method or method == "none":
        return None
    if method == "fp8" and model.weight_block is not None:
        return "fp8-blocks"
    scheme_known = model.quant_bits is not None and model.quant_is_float is not None
    if method != "compressed-tensors" or not scheme_known:
        return method
    if model.quant_is_float:
        return f"{method}-fp8" if model.quant_bits == 8 else f"{method}-nvfp4"
    return f"{method}-int8" if model.quant_bits == 8 else f"{method}-int4"


def _variant(host: str, wanted: Model, model: ModelFacts, method: str | None) -> Iterator[Finding]:
    found = method or model.dtype or "unquantised"
    evidence = f"config.json: quant_method {model.quant_method}, torch_dtype {model.dtype}"
    if wanted.variant is not None and not _is_variant(wanted.variant, model, method):
        yield Finding(
            "model.variant-differs",
            "refuse",
            host,
            "model.variant",
            f"model.variant is {wanted.variant}, but {wanted.id} is {found}",
            "correct model.variant, or write the model.id of the variant that is meant",
            evidence=evidence,
            source="config.json of the model",
        )
        return
    if method is None:
        return
    if wanted.variant is None:
        yield Finding(
            "model.variant-not-stated",
            "warn",
            host,
            "model.variant",
            f"{wanted.id} is quantised ({found}), and no setting says that this is meant",
            "write model.variant, so that nobody serves a quantised model without knowing",
            evidence=evidence,
            source="config.json of the model",
        )
    if wanted.quantization_accepted_for is None:
        yield Finding(
            "model.quantization-not-accepted",
            "warn",
            host,
            "model.quantization_accepted_for",
            f"{wanted.id} is quantised ({found}); nothing says for which use its answers were "
            "tried and found good enough",
            "try it on the real use, then write model.quantization_accepted_for",
            evidence=evidence,
            source="quantisation changes answers, by how much depends on the use",
        )


def _is_variant(variant: str, model: ModelFacts, method: str | None) -> bool:
    if variant in _DTYPES:
        return method is None and model.dtype in (*_DTYPES[variant], None)
    return method in VARIANTS[variant] or (
        # Without bits in config.json the scheme is not known, and nothing speaks against it.
        method == "compressed-tensors"
    )


@functools.cache
def _by_method() -> dict[str, Quantisation]:
    return {row.method: row for row in tables.quantisations().methods}


def _quantised(hardware: Hardware, method: str, vllm: Version) -> Iterator[Finding]:
    row = _by_method().get(_ALIASES.get(method, method))
    if row is None:
        yield Finding(
            "compat.quantization-unknown",
            "warn",
            hardware.host,
            "model.id",
            f"nothing is known of the quantisation method {method}: neither whether vLLM {vllm} "
            "has it, nor what it asks of a GPU",
            "try it on one host first; if it serves, add it to "
            "planning/tables/compute_capability.yml",
            evidence=f"quant_method {method}",
            source="planning/tables/compute_capability.yml",
        )
        return
    place = row.place(vllm)
    if place == "gone" or vllm < row.minimum[0].vllm:
        yield Finding(
            "compat.quantization-not-built-in",
            "refuse",
            hardware.host,
            "model.id",
            f"vLLM {vllm} has no {method} quantisation built in "
            + (
                f"(last seen in {row.last})"
                if place == "gone"
                else f"yet (first seen in {row.minimum[0].vllm})"
            ),
            f"use vLLM {row.last if place == 'gone' else row.minimum[0].vllm}, or the model in "
            "another variant; if a plugin in your lock brings it, accept this finding",
            evidence=f"quant_method {method}, runtime.vllm {vllm}",
            source=row.source,
        )
        return
    least = [rule.capability for rule in row.minimum if rule.vllm <= vllm][-1]
    yield from _against_gpus(hardware, row, method, vllm, least)


def _against_gpus(
    hardware: Hardware, row: Quantisation, method: str, vllm: Version, least: tuple[int, int]
) -> Iterator[Finding]:
    cannot = [gpu for gpu in hardware.gpus if _below(gpu, least)]
    slow = [gpu for gpu in hardware.gpus if row.native and _below(gpu, row.native)]
    if cannot:
        yield Finding(
            "compat.quantization-unsupported",
            "refuse",
            hardware.host,
            named(cannot),
            f"{method} needs compute capability {dotted(least)} with vLLM {vllm}; "
            f"{cannot[0].name} has {_capability(cannot[0])}" + _later(row, cannot[0], vllm),
            "use the model in another variant (bf16, AWQ, GPTQ), or newer GPUs",
            evidence=f"quant_method {method}; compute capability {_capability(cannot[0])}",
            source=row.source,
        )
    elif slow and row.native:
        yield Finding(
            "compat.quantization-slow",
            "warn",
            hardware.host,
            named(slow),
            f"{slow[0].name} ({_capability(slow[0])}) does not compute {method} itself, which "
            f"takes {dotted(row.native)}: weights are expanded while computing. That saves memory, "
            "not time",
            "measure it; a bf16, AWQ or GPTQ variant may be faster there",
            evidence=f"quant_method {method}; compute capability {_capability(slow[0])}",
            source=row.source,
        )


def _later(row: Quantisation, gpu: Gpu, vllm: Version) -> str:
    later = [
        rule.vllm for rule in row.minimum if rule.vllm > vllm and not _below(gpu, rule.capability)
    ]
    return f" (enough from vLLM {later[0]})" if later else ""


def _below(gpu: Gpu, least: tuple[int, int]) -> bool:
    capability = capability_of(gpu)
    return capability is not None and capability < least


def _capability(gpu: Gpu) -> str:
    capability = capability_of(gpu)
    return dotted(capability) if capability else "unknown"


def _dtype(
    hardware: Hardware, settings: Settings, model: ModelFacts, method: str | None
) -> Iterator[Finding]:
    """vLLM refuses bfloat16 on older GPUs; with dtype auto it takes the checkpoint's."""
    asked = settings.engine.args.get("dtype", "auto")
    rule = tables.quantisations().bfloat16
    old = [gpu for gpu in hardware.gpus if _below(gpu, rule.capability)]
    computed = model.dtype if asked == "auto" else asked
    if computed != "bfloat16" or not old:
        return
    yield Finding(
        "compat.dtype-unsupported",
        "refuse",
        hardware.host,
        named(old),
        f"{old[0].name} (compute capability {_capability(old[0])}) does not compute bfloat16, "
        f"which takes {dotted(rule.capability)}",
        "write engine.args dtype: float16 and watch for overflows, or use newer GPUs",
        evidence=f"dtype {asked}; the checkpoint is {model.dtype}"
        + (f", {method}" if method else ""),
        source=rule.source,
    )
