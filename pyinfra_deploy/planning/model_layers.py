"""The parts of config.json that say how layers differ: attention kinds, experts, MLA, rope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.planning.model_shape import (
    Attention,
    Experts,
    LatentAttention,
    LinearAttention,
    RopeScaling,
)

if TYPE_CHECKING:
    from pyinfra_deploy.planning.architectures import Architecture
    from pyinfra_deploy.planning.config_fields import Fields

_KINDS: dict[str, Attention] = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "sliding_window": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "linear",
    "mamba": "linear",
    "mamba2": "linear",
    "recurrent": "linear",
    "conv": "linear",
}
# These never scale max_position_embeddings themselves (vLLM config, _get_and_verify_max_len).
_NOT_SCALING = frozenset({"default", "llama3", "longrope", "su", "mrope", "proportional"})


def read_attention(
    text: Fields, layers: int, architecture: Architecture | None, linear: bool
) -> tuple[Attention, ...]:
    """One kind a layer: from layer_types where the file has them, else from the pattern keys."""
    names = text.texts("layer_types") or text.texts("layers_block_type")
    if names:
        kinds: list[Attention] = [_KINDS[name] for name in names if name in _KINDS]
        if len(names) == len(kinds) == layers:
            return tuple(kinds)
        text.wrong("layer_types", list(names), f"{layers} known kinds of layers")
    if linear:
        every = text.count("full_attention_interval") or 4
        return _every(every, layers, "linear")
    window = text.values.get("sliding_window")
    every = text.count("sliding_window_pattern") or (
        architecture.window_pattern if architecture else 0
    )
    if window is not None and every > 1:
        # Gemma: the last of every n is full. gpt-oss lists its layers, and begins with a window.
        return _every(every, layers, "sliding")
    return _every(1, layers, "full")


def _every(step: int, layers: int, others: Attention) -> tuple[Attention, ...]:
    found: list[Attention] = [others] * layers
    for layer in range(step - 1, layers, step):
        found[layer] = "full"
    return tuple(found)


def read_experts(text: Fields, layers: int, architecture: Architecture | None) -> Experts | None:
    count = text.count("num_experts", "num_local_experts", "n_routed_experts")
    if count is None or count == 1:
        return None
    width = text.count("moe_intermediate_size", "expert_ffn_hidden_size")
    if width is None and (architecture is None or architecture.expert_intermediate):
        width = text.count("intermediate_size", "ffn_hidden_size")
    if width is None:
        text.wrong("moe_intermediate_size", None, "given, though there are experts")
        return None
    shared = text.count("shared_expert_intermediate_size", least=0)
    if shared is None:
        shared = (text.count("n_shared_experts", "num_shared_experts", least=0) or 0) * width
    return Experts(
        count=count,
        per_token=text.count("num_experts_per_tok", "moe_topk", "top_k_experts") or 1,
        intermediate=width,
        shared_intermediate=shared,
        layers=_expert_layers(text, layers),
    )


def _expert_layers(text: Fields, layers: int) -> tuple[bool, ...]:
    """DeepSeek: all but the first k. Qwen: every n-th, without those listed."""
    dense = text.count("first_k_dense_replace", least=0) or 0
    step = text.count("decoder_sparse_step", "moe_layer_freq") or 1
    only_mlp = frozenset(text.counts("mlp_only_layers", least=0) or ())
    offset = 1 if "decoder_sparse_step" in text.values else 0
    return tuple(
        layer >= dense and layer not in only_mlp and (layer + offset) % step == 0
        for layer in range(layers)
    )


def read_latent(text: Fields) -> LatentAttention | None:
    rank = text.count("kv_lora_rank")
    if rank is None:
        return None
    return LatentAttention(
        kv_lora_rank=rank,
        rope_head_dim=text.count("qk_rope_head_dim") or 64,
        nope_head_dim=text.count("qk_nope_head_dim") or 128,
        value_head_dim=text.count("v_head_dim") or 128,
        q_lora_rank=text.count("q_lora_rank"),
        index_head_dim=text.count("index_head_dim"),
        index_heads=text.count("index_n_heads"),
    )


def read_linear(text: Fields) -> LinearAttention | None:
    """Gated delta net's keys; None for Mamba and others, whose state is not computed here."""
    keys, values = text.count("linear_num_key_heads"), text.count("linear_num_value_heads")
    if keys is None or values is None:
        return None
    return LinearAttention(
        key_heads=keys,
        value_heads=values,
        key_head_dim=text.count("linear_key_head_dim") or 128,
        value_head_dim=text.count("linear_value_head_dim") or 128,
        conv_kernel=text.count("linear_conv_kernel_dim") or 4,
        state_bytes=2 if text.text("mamba_ssm_dtype") in ("bfloat16", "float16") else 4,
    )


def read_rope(text: Fields) -> tuple[RopeScaling | None, int | None]:
    """(scaling, the longest context vLLM derives from the file)."""
    longest = text.count(
        "max_position_embeddings", "max_sequence_length", "seq_length", "n_positions", "max_seq_len"
    )
    scaling = text.inside("rope_scaling") or text.inside("rope_parameters")
    if scaling is None:
        return None, longest
    kind = scaling.text("rope_type", "type") or "default"
    factor = scaling.number("factor") or 1.0
    original = scaling.count("original_max_position_embeddings")
    if kind == "default":
        return None, longest
    rope = RopeScaling(kind, factor, original)
    if kind in _NOT_SCALING:
        return rope, longest
    if kind == "yarn" and original is not None:
        return rope, round(original * factor)
    return rope, None if longest is None else round(longest * factor)
