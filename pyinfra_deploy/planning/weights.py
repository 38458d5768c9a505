"""How many bytes of weights each GPU holds.

The tensors are counted from the shape, part by part, because the parts are shared in different
ways: attention and MLPs are cut over tensor parallel ranks, routed experts over TP x DP, norms,
routers and MLA's down-projections are on every rank, the embedding is on the first pipeline stage
and the output layer on the last. Where the size of the checkpoint is known, the parts are scaled to
it; tests/unit/planning_model/test_model_config.py has published sizes that the shape alone hits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pyinfra_deploy.planning.layout import stage_layers
from pyinfra_deploy.planning.width_rules import padded_vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyinfra_deploy.planning.layout import Layout
    from pyinfra_deploy.planning.model_shape import ModelShape, Quantization

# Beyond the tensors: rank-local scales, rotary tables, alignment. TP adds 0.1 to 1.4% to weights/TP
# in the recorded start-ups; what is left after counting replicated parts is about this.
LOADED_EXTRA = 0.002


@dataclass(frozen=True)
class LayerBytes:
    """One layer: cut over TP; K and V projections (repeated when TP exceeds the KV heads); routed
    experts, cut over TP x DP; on every rank."""

    cut: float
    keys: float
    experts: float
    everywhere: float

    @property
    def total(self) -> float:
        return self.cut + self.keys + self.experts + self.everywhere


@dataclass(frozen=True)
class ModelBytes:
    """Bytes of all parts, as the checkpoint has them. kinds: of each layer, its index in parts."""

    embedding: float
    output: float
    parts: tuple[LayerBytes, ...]
    kinds: tuple[int, ...]
    draft: LayerBytes
    draft_layers: int

    @property
    def served(self) -> float:
        """Without MTP layers, which vLLM loads only for speculation."""
        return self.embedding + self.output + self.summed([part.total for part in self.parts])

    def summed(self, sizes: Sequence[float], layers: range | None = None) -> float:
        """The sum over layers, given one size a kind."""
        kinds = self.kinds if layers is None else self.kinds[layers.start : layers.stop]
        return sum(kinds.count(kind) * size for kind, size in enumerate(sizes))

    @property
    def total(self) -> float:
        return self.served + self.draft.total * self.draft_layers


@lru_cache(maxsize=64)
def count_bytes(shape: ModelShape, quantization: Quantization | None) -> ModelBytes:
    """The parts of a model, with its linear layers in `quantization`."""
    element = float(shape.element_bytes)
    vocabulary = float((shape.vocab or 0) * shape.hidden)
    linear = element
    expert = element
    if quantization is not None:
        expert = bytes_per_weight(quantization)
        linear = element if quantization.experts_only else expert
        if quantization.expert_bits is not None:
            # Four bits and a one-byte scale for every 32.
            expert = quantization.expert_bits / 8 + 1 / 32
    parts: dict[tuple[bool, bool], LayerBytes] = {}
    kinds = []
    flags = shape.experts.layers if shape.experts else (False,) * shape.layers
    for kind, has_experts in zip(shape.attention, flags, strict=True):
        key = (kind == "linear", has_experts)
        if key not in parts:
            parts[key] = _layer(shape, *key, linear, expert, element)
        kinds.append(list(parts).index(key))
    draft = _layer(shape, False, bool(shape.experts), linear, expert, element)
    return ModelBytes(
        embedding=vocabulary * element,
        output=0.0 if shape.tied_embeddings or shape.pooling else vocabulary * element,
        parts=tuple(parts.values()),
        kinds=tuple(kinds),
        draft=draft,
        draft_layers=shape.draft_layers,
    )


def bytes_per_weight(quantization: Quantization) -> float:
    """Of a quantised linear layer, its scales counted in."""
    size = quantization.bits / 8
    if quantization.block is not None:
        return size + 4 / (quantization.block[0] * quantization.block[1])
    if quantization.group_size is not None and quantization.bits <= 8:
        # MXFP4 and NVFP4: one byte of scale per group; GPTQ and AWQ: a 16-bit scale and a zero.
        floating = quantization.method in ("mxfp4", "modelopt_fp4")
        return size + (1.0 if floating else 2.0 + size) / quantization.group_size
    return size


def _layer(
    shape: ModelShape,
    linear_attention: bool,
    experts: bool,
    linear: float,
    expert: float,
    raw: float,
) -> LayerBytes:
    cut, keys, everywhere = _linear_attention(shape) if linear_attention else _attention(shape)
    hidden = shape.hidden
    matrices = 3 if shape.gated_mlp else 2
    routed = 0.0
    small = 2.0 * hidden
    moe = shape.experts
    if experts and moe is not None:
        routed = float(moe.count * matrices * hidden * moe.intermediate)
        cut += matrices * hidden * moe.shared_intermediate
        small += moe.count * hidden
    else:
        cut += matrices * hidden * (shape.intermediate or 4 * hidden)
    return LayerBytes(
        cut=cut * linear,
        keys=keys * linear,
        experts=routed * expert,
        everywhere=everywhere * linear + small * raw,
    )


def _attention(shape: ModelShape) -> tuple[float, float, float]:
    """(cut, keys and values, everywhere), in weights."""
    hidden, heads = shape.hidden, shape.heads
    latent = shape.latent
    if latent is None:
        queries = heads * shape.head_dim
        gate = 2 if shape.attention_output_gate else 1
        return (
            float((gate + 1) * hidden * queries),
            2.0 * hidden * shape.kv_heads * shape.head_dim,
            0.0,
        )
    query_dim = heads * (latent.nope_head_dim + latent.rope_head_dim)
    cut = float(
        latent.kv_lora_rank * heads * (latent.nope_head_dim + latent.value_head_dim)
        + heads * latent.value_head_dim * hidden
    )
    everywhere = float(hidden * (latent.kv_lora_rank + latent.rope_head_dim))
    if latent.q_lora_rank:
        everywhere += hidden * latent.q_lora_rank
        cut += latent.q_lora_rank * query_dim
    else:
        cut += hidden * query_dim
    if latent.index_head_dim and latent.index_heads:
        width = latent.index_head_dim
        everywhere += (latent.q_lora_rank or hidden) * latent.index_heads * width + hidden * width
    return cut, 0.0, everywhere


def _linear_attention(shape: ModelShape) -> tuple[float, float, float]:
    linear = shape.linear
    if linear is None:
        # Linear attention of an unknown kind: as large as ordinary attention.
        return _attention(shape)
    keys = linear.key_heads * linear.key_head_dim
    values = linear.value_heads * linear.value_head_dim
    projections = 2 * keys + 3 * values + 2 * linear.value_heads
    return float(shape.hidden * projections), 0.0, 0.0


def stage_bytes(
    shape: ModelShape, parts: ModelBytes, layout: Layout, draft: bool
) -> tuple[float, ...]:
    """Bytes per GPU of each pipeline stage. draft: the checkpoint's MTP layer is loaded too."""
    scale, rest = _scale(shape, parts)
    tensor = layout.tensor
    # TP over more ranks than KV heads repeats each head (max(1, kv // tp) in vLLM).
    copies = max(1.0, tensor / shape.kv_heads)
    per_layer = [_rank_bytes(layer, tensor, copies, layout.expert_ranks) for layer in parts.parts]
    found = []
    stages = stage_layers(shape.layers, layout.pipeline)
    for number, stage in enumerate(stages):
        size = parts.summed(per_layer, stage)
        last = number == len(stages) - 1
        if number == 0:
            size += _vocabulary(shape, parts.embedding, tensor)
        if last:
            output = parts.output
            if shape.tied_embeddings and len(stages) > 1 and not shape.pooling:
                output = parts.embedding
            size += _vocabulary(shape, output, tensor)
            if draft and parts.draft_layers:
                size += _rank_bytes(parts.draft, tensor, copies, layout.expert_ranks)
        size *= scale * (1 + LOADED_EXTRA)
        # The vision or audio part: on the first stage. Most encoders are cut over TP.
        found.append(size + (rest / tensor if number == 0 else 0.0))
    return tuple(found)


def _rank_bytes(layer: LayerBytes, tensor: int, copies: float, expert_ranks: int) -> float:
    return (
        layer.cut / tensor
        + layer.keys * copies / tensor
        + layer.experts / expert_ranks
        + layer.everywhere
    )


def _vocabulary(shape: ModelShape, size: float, tensor: int) -> float:
    vocab = shape.vocab or 0
    if not vocab:
        return 0.0
    return size * padded_vocabulary(vocab) / vocab / tensor


def _scale(shape: ModelShape, parts: ModelBytes) -> tuple[float, float]:
    """(factor on the counted parts, bytes that are none of them)."""
    weights = shape.weights
    if parts.total <= 0 or (weights.source == "computed" and not shape.multimodal):
        return 1.0, 0.0
    # MTP layers that the configuration tells of may have been left out of a repack.
    counted = parts.total
    if weights.total_bytes < counted:
        counted = parts.served
    rest = weights.total_bytes - counted
    if shape.multimodal and 0 <= rest <= counted:
        return 1.0, rest
    return weights.total_bytes / counted, 0.0
