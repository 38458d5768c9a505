"""What planning knows of a model: its shape, read from config.json, and the size of its weights.

Pure values. Sizes are bytes unless the name says otherwise; None means "the model does not have it"
or "was not told", and a finding of the reader says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What a layer keeps of the tokens it has seen: all of them, the last window of them, or a state of
# fixed size (Mamba, gated delta net and other linear attention).
Attention = Literal["full", "sliding", "linear"]

# Where the size of the weights is from, from the best to the least certain.
WeightsSource = Literal["index", "listing", "computed"]


@dataclass(frozen=True)
class Quantization:
    """config.json's quantization_config, reduced to what decides about memory and layouts.

    method: vLLM's name (fp8, gptq, awq, compressed-tensors, mxfp4, modelopt, ...). bits: of a
    weight. block: (block_n, block_k) of block-wise FP8. group_size: weights per scale of GPTQ, AWQ
    and their like; None means per channel. kv_cache_fp8: the checkpoint asks for an FP8 KV cache,
    which kv-cache-dtype auto follows. experts_only: only the experts are quantised (MXFP4).
    expert_bits: of the experts' weights, where they differ from the rest (DeepSeek 4). floating:
    FP8 or FP4 rather than integers, where the method leaves that open and the configuration says.
    """

    method: str
    bits: float = 16.0
    block: tuple[int, int] | None = None
    group_size: int | None = None
    activation_scheme: str | None = None
    kv_cache_fp8: bool = False
    experts_only: bool = False
    expert_bits: float | None = None
    floating: bool | None = None


@dataclass(frozen=True)
class Experts:
    """A mixture of experts. intermediate: width of one expert. shared_intermediate: width of all
    shared experts together. layers: which layers have experts, one flag a layer."""

    count: int
    per_token: int
    intermediate: int
    shared_intermediate: int
    layers: tuple[bool, ...]


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): what is cached per token and layer is one latent
    vector and one rotary key, whatever the number of heads. index_head_dim: of sparse attention
    (DeepSeek 3.2, GLM 5), whose indexer has a cache of its own."""

    kv_lora_rank: int
    rope_head_dim: int
    nope_head_dim: int
    value_head_dim: int
    q_lora_rank: int | None = None
    index_head_dim: int | None = None
    index_heads: int | None = None


@dataclass(frozen=True)
class LinearAttention:
    """Layers of gated delta net (Qwen3-Next, Qwen3.5): the state that each request holds."""

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    state_bytes: int = 4


@dataclass(frozen=True)
class RopeScaling:
    """kind: yarn, llama3, longrope, dynamic, ...; original: context length before scaling."""

    kind: str
    factor: float
    original: int | None = None


@dataclass(frozen=True)
class Weights:
    """total_bytes: all tensors of the checkpoint. shards: the files that the index names."""

    total_bytes: int
    source: WeightsSource
    shards: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelShape:
    """A model, as far as a plan needs it.

    known: its architecture is one whose memory layout this project has checked. attention: one
    entry a layer. native_context: tokens, after the rope scaling of config.json. element_bytes: of
    the model's own dtype. draft_layers: MTP layers inside the checkpoint. cache_unknown: the KV
    cache of this architecture is none that can be computed here.
    """

    architecture: str
    model_type: str
    known: bool
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    head_dim_explicit: bool
    intermediate: int | None
    vocab: int | None
    tied_embeddings: bool
    dtype: str
    element_bytes: int
    native_context: int | None
    attention: tuple[Attention, ...]
    weights: Weights
    rope: RopeScaling | None = None
    experts: Experts | None = None
    latent: LatentAttention | None = None
    linear: LinearAttention | None = None
    sliding_window: int | None = None
    full_kv_heads: int | None = None
    full_head_dim: int | None = None
    attention_output_gate: bool = False
    gated_mlp: bool = True
    quantization: Quantization | None = None
    multimodal: bool = False
    pooling: bool = False
    draft_layers: int = 0
    cache_unknown: bool = False

    @property
    def label(self) -> str:
        return f"{self.architecture} ({self.layers} layers)"
