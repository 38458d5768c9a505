"""config.json, and where there are any the safetensors index and the hub's listing, -> ModelShape.

Takes parsed JSON, does no I/O and trusts nothing in it. A model type that this version has never
met is read by the names that almost all models share, and a finding says what that leaves open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyinfra_deploy.planning.architectures import Architecture, architecture_of
from pyinfra_deploy.planning.checkpoint import read_checkpoint
from pyinfra_deploy.planning.config_fields import Fields, shown
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.model_layers import (
    read_attention,
    read_experts,
    read_latent,
    read_linear,
    read_rope,
)
from pyinfra_deploy.planning.model_shape import ModelShape, Weights
from pyinfra_deploy.planning.quantization import read_quantization
from pyinfra_deploy.planning.weights import count_bytes

CONFIG = "config.json"
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_ELEMENT = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
# Of an image encoder, where only the language model could be counted: recorded starts show 0.8 to
# 1.9 GiB.
ENCODER_BYTES = round(1.2 * 2**30)
# More layers than any model has: such a file is broken, and planning it would take for ever.
_MOST_LAYERS = 2000


@dataclass(frozen=True)
class ModelRead:
    """shape: None where config.json does not say enough to plan anything."""

    shape: ModelShape | None
    findings: tuple[Finding, ...] = ()


def read_model(
    config: object, index: object = None, listing: object = None, host: str = ""
) -> ModelRead:
    """The model's shape. config, index, listing: parsed JSON; see checkpoint.read_checkpoint."""
    if not isinstance(config, dict):
        return ModelRead(None, (_no_shape(host, "it is not an object", shown(config)),))
    outer = Fields(config, host, CONFIG)
    text = _text_part(outer)
    name = _architecture_name(outer, text)
    checkpoint = read_checkpoint(index, listing, host)
    shape = _shape(outer, text, name, architecture_of(name))
    findings = [*outer.findings, *checkpoint.findings]
    if isinstance(shape, str):
        return ModelRead(None, (*findings, _no_shape(host, shape, name)))
    if checkpoint.weights is not None:
        shape = replace(shape, weights=checkpoint.weights)
    else:
        total = round(count_bytes(shape, shape.quantization).total)
        if shape.multimodal:
            total += ENCODER_BYTES
        shape = replace(shape, weights=Weights(total, "computed"))
        findings.append(_computed(host, shape))
    findings.extend(_unknowns(host, shape))
    return ModelRead(shape, tuple(findings))


def _text_part(outer: Fields) -> Fields:
    """The language model's own section of a multimodal configuration."""
    found = outer
    for _ in range(2):
        for key in _NESTED:
            if isinstance(found.values.get(key), dict):
                found = found.inside(key) or found
                break
        else:
            break
    return found


def _architecture_name(outer: Fields, text: Fields) -> str:
    for fields in (outer, text):
        names = fields.texts("architectures")
        if names:
            return names[0]
    return outer.text("model_type") or text.text("model_type") or "unknown"


def _shape(
    outer: Fields, text: Fields, name: str, architecture: Architecture | None
) -> ModelShape | str:
    """The shape without its weights, or what is missing for one."""
    layers = text.count("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    hidden = text.count("hidden_size", "n_embd", "d_model", "dim")
    heads = text.count("num_attention_heads", "n_head", "n_heads", "num_heads")
    missing = [
        key
        for key, value in (
            ("num_hidden_layers", layers),
            ("hidden_size", hidden),
            ("num_attention_heads", heads),
        )
        if value is None
    ]
    if layers is None or hidden is None or heads is None:
        return "it does not say " + ", ".join(missing)
    if layers > _MOST_LAYERS:
        return f"it claims {layers} layers"
    explicit = text.count("head_dim", "attention_head_dim", "kv_channels")
    dtype = text.text("dtype", "torch_dtype") or outer.text("dtype", "torch_dtype") or "bfloat16"
    dtype = dtype.removeprefix("torch.")
    rope, context = read_rope(text)
    latent = read_latent(text)
    linear = read_linear(text)
    attention = read_attention(text, layers, architecture, linear is not None)
    multimodal = text is not outer or bool(architecture and architecture.multimodal)
    return ModelShape(
        architecture=name,
        model_type=outer.text("model_type") or text.text("model_type") or "",
        known=architecture is not None,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(text, heads),
        head_dim=explicit or max(1, hidden // heads),
        head_dim_explicit=explicit is not None,
        intermediate=text.count("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"),
        vocab=text.count("vocab_size", "padded_vocab_size") or outer.count("vocab_size"),
        tied_embeddings=_tied(outer, text, architecture),
        dtype=dtype,
        element_bytes=_ELEMENT.get(dtype, 2),
        native_context=context,
        attention=attention,
        weights=Weights(0, "computed"),
        rope=rope,
        experts=read_experts(text, layers, architecture),
        latent=latent,
        linear=linear,
        sliding_window=text.count("sliding_window") if "sliding" in attention else None,
        full_kv_heads=text.count("num_global_key_value_heads"),
        full_head_dim=text.count("global_head_dim"),
        attention_output_gate=text.flag(
            "attn_output_gate", bool(architecture and architecture.output_gate)
        ),
        gated_mlp=architecture is None or architecture.gated_mlp,
        quantization=read_quantization(outer)
        or (None if text is outer else read_quantization(text)),
        multimodal=multimodal,
        draft_layers=text.count("num_nextn_predict_layers", "mtp_num_hidden_layers", least=0) or 0,
        cache_unknown=bool(architecture and architecture.cache_unknown)
        or (linear is None and "linear" in attention),
    )


def _kv_heads(text: Fields, heads: int) -> int:
    if text.values.get("multi_query") is True and not text.values.get("multi_query_attention"):
        return 1
    found = text.count(
        "num_key_value_heads", "multi_query_group_num", "n_head_kv", "num_kv_heads", "n_kv_heads"
    )
    return found or heads


def _tied(outer: Fields, text: Fields, architecture: Architecture | None) -> bool:
    default = bool(architecture and architecture.tied)
    for fields in (text, outer):
        if fields.values.get("tie_word_embeddings") is not None:
            return fields.flag("tie_word_embeddings", default)
    return default


def _no_shape(host: str, why: str, evidence: str) -> Finding:
    return Finding(
        id="model.shape-unknown",
        severity="warn",
        host=host,
        subject=CONFIG,
        message="nothing about memory and parallelism can be planned from this config.json: "
        f"{why}.",
        fix="check that it is the model's own config.json; if so, start once with a small "
        "max-model-len and read vLLM's figures from its log.",
        evidence=evidence,
    )


def _computed(host: str, shape: ModelShape) -> Finding:
    gib = shape.weights.total_bytes / 2**30
    return Finding(
        id="model.weights-estimated",
        severity="note",
        host=host,
        subject=shape.architecture,
        message=f"neither an index nor a listing tells the size of the weights; counted from the "
        f"shape they are about {gib:.1f} GiB.",
        fix="let the plan read model.safetensors.index.json or the hub's listing.",
        evidence=f"{shape.layers} layers, hidden {shape.hidden}",
    )


def _unknowns(host: str, shape: ModelShape) -> list[Finding]:
    found = []
    if not shape.known:
        found.append(
            Finding(
                id="model.unknown-architecture",
                severity="warn",
                host=host,
                subject=shape.architecture,
                message=f"{shape.architecture} is not an architecture this version knows. Layers, "
                "heads and weights are read by their usual names; whether its KV cache, its "
                "experts or its parallelism have peculiarities is not known.",
                fix="start once with a small max-model-len and compare vLLM's figures.",
                evidence=f"{CONFIG}: {shape.architecture}",
            )
        )
    if shape.cache_unknown:
        found.append(
            Finding(
                id="model.cache-unknown",
                severity="warn",
                host=host,
                subject=shape.architecture,
                message="the KV cache of this architecture is compressed in a way that cannot be "
                "computed here, so tokens and concurrent requests are left out.",
                fix="start once and read vLLM's figures from its log.",
                source="vllm-project/vllm#51041: tokens are not linear in memory there",
            )
        )
    if shape.vocab is None or (shape.intermediate is None and shape.experts is None):
        key = "vocab_size" if shape.vocab is None else "intermediate_size"
        found.append(
            Finding(
                id="model.shape-incomplete",
                severity="warn",
                host=host,
                subject=CONFIG,
                message=f"{key} is missing: the working memory is estimated without it.",
                fix="check that it is the model's own config.json.",
            )
        )
    return found
