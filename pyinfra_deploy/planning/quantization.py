"""quantization_config of a checkpoint, in any of its dialects, as one value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.planning.model_shape import Quantization

if TYPE_CHECKING:
    from pyinfra_deploy.planning.config_fields import Fields

# Bits of a weight where the configuration does not say. MXFP4 and NVFP4 are four bits; what their
# scales add is counted from the group size.
_BITS = {
    "fp8": 8,
    "fbgemm_fp8": 8,
    "mxfp4": 4,
    "awq": 4,
    "gptq": 4,
    "auto-round": 4,
    "bitsandbytes": 4,
    "modelopt": 8,
    "modelopt_fp4": 4,
}
_GROUP = {"mxfp4": 32, "modelopt_fp4": 16}
# vLLM's MoE-only format of gpt-oss leaves attention and embeddings as they are.
_EXPERTS_ONLY = frozenset({"mxfp4"})


def read_quantization(config: Fields) -> Quantization | None:
    """What config.json says of quantisation; None for a checkpoint in its own dtype."""
    fields = config.inside("quantization_config") or config.inside("compression_config")
    if fields is None:
        return None
    method = (fields.text("quant_method", "quant_algo") or "unknown").lower().replace("_gptq", "")
    method = "auto-round" if method in ("auto_round", "autoround", "intel/auto-round") else method
    if method == "compressed-tensors":
        return _compressed(fields)
    if method.startswith("modelopt") or fields.text("quant_algo") is not None:
        return _modelopt(fields)
    if method == "bitsandbytes":
        return Quantization(method, bits=8 if fields.flag("load_in_8bit") else 4)
    return Quantization(
        method,
        bits=fields.number("bits", "w_bit", "num_bits") or _BITS.get(method, 16),
        block=_block(fields, "weight_block_size"),
        group_size=_group(fields) or _GROUP.get(method),
        activation_scheme=fields.text("activation_scheme"),
        experts_only=method in _EXPERTS_ONLY,
        expert_bits=4 if config.text("expert_dtype") in ("fp4", "mxfp4") else None,
    )


def online(method: str) -> Quantization:
    """--quantization METHOD on a checkpoint in its own dtype: vLLM quantises while it loads."""
    return Quantization(method, bits=_BITS.get(method, 16))


def _compressed(fields: Fields) -> Quantization:
    """llm-compressor's format: groups of layers, each with its scheme; the first one counts."""
    bits, block, group = fields.number("bits") or 16.0, None, None
    scheme = fields.text("activation_scheme")
    floating: bool | None = None
    groups = fields.inside("config_groups")
    for name in groups.values if groups is not None else ():
        one = groups.inside(name) if groups is not None else None
        weights = one.inside("weights") if one is not None else None
        if weights is None:
            continue
        said = weights.number("num_bits")
        kind = weights.text("type")
        bits = said or bits
        floating = kind == "float" if said and kind is not None else None
        group = _group(weights)
        block = _block(weights, "block_structure")
        inputs = one.inside("input_activations") if one is not None else None
        if inputs is not None:
            scheme = "dynamic" if inputs.flag("dynamic") else "static"
        break
    cache = fields.inside("kv_cache_scheme")
    return Quantization(
        "compressed-tensors",
        bits=bits,
        block=block,
        group_size=group,
        activation_scheme=scheme,
        kv_cache_fp8=cache is not None and cache.number("num_bits") == 8,
        floating=floating,
    )


def _modelopt(fields: Fields) -> Quantization:
    """NVIDIA ModelOpt, either flat or under the key quantization."""
    inner = fields.inside("quantization") or fields
    algorithm = (inner.text("quant_algo") or fields.text("quant_method") or "").upper()
    four = "FP4" in algorithm or "W4" in algorithm
    cache = (inner.text("kv_cache_quant_algo") or "").upper()
    return Quantization(
        "modelopt_fp4" if four else "modelopt",
        bits=4 if four else 8,
        group_size=(inner.count("group_size") or 16) if four else None,
        kv_cache_fp8=cache == "FP8",
    )


def _group(fields: Fields) -> int | None:
    """-1 is how GPTQ says one scale per channel."""
    if fields.values.get("group_size") == -1:
        return None
    return fields.count("group_size", "q_group_size")


def _block(fields: Fields, key: str) -> tuple[int, int] | None:
    if fields.values.get(key) is None:
        return None
    found = fields.counts(key)
    if found is None:
        return None
    if len(found) != 2:
        fields.wrong(key, fields.values[key], "two whole numbers")
        return None
    return found[0], found[1]
