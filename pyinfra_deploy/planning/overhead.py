"""What vLLM needs on a GPU beside weights and KV cache: an estimate, said as a range.

vLLM measures it at start by a dry run and takes it from what gpu-memory-utilization grants. The
middle is arithmetic over that dry run: the widest moment of one forward pass of
max-num-batched-tokens, or of sampling for max-num-seqs requests over the whole vocabulary,
whichever is larger, plus what CUDA, NCCL and captured graphs take. Low and high allow for what the
arithmetic cannot see. Constants, sources and errors: docs/memory-estimates.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from pyinfra_deploy.planning.engine_choice import V1_ENGINE
from pyinfra_deploy.planning.gpu_memory import GIB, Range

if TYPE_CHECKING:
    from pyinfra_deploy.planning.engine_choice import Batch, EngineChoice
    from pyinfra_deploy.planning.layout import Layout
    from pyinfra_deploy.planning.model_shape import ModelShape

# Sampling with top-p over float32 logits keeps this many copies of them at its widest: 9.73 and
# 9.73 in two recorded profiles of 0.11.0 (4.76 GiB at a vocabulary of 128,256 and 5.64 at 151,936,
# 1,024 requests). Sampling without a sort (Triton and FlashInfer kernels, default by 0.17.1) needs
# about 3.5.
SORTED_COPIES = 9.73
UNSORTED_COPIES = 3.5
UNSORTED_FROM = Version("0.17.0")
# Graphs are part of the profile since 0.21.0; recorded 0.06 to 1.2 GiB.
GRAPHS_COUNTED_FROM = Version("0.21.0")
_GRAPHS = Range(0.0, 0.4 * GIB, 1.3 * GIB)
# 0.13 to 0.14 GiB outside torch on one GPU (0.11.0, H100).
_CONTEXT = Range(0.0, 0.14 * GIB, 0.6 * GIB)
# NCCL and the buffers of custom all-reduce, per process once there are several.
_COLLECTIVES = Range(0.1 * GIB, 0.5 * GIB, 1.5 * GIB)
_LARGE_GROUP = Range(0.1 * GIB, 1.2 * GIB, 3.0 * GIB)
# An image encoder is profiled with its largest input.
_ENCODER = Range(0.0, 1.5 * GIB, 8.5 * GIB)
# Sparse MLA keeps top-k buffers and a prefill workspace; unified memory also counts what the rest
# of the system took meanwhile.
_LATENT = Range(0.0, 1.0 * GIB, 3.0 * GIB)
_SPARSE = Range(0.5 * GIB, 3.5 * GIB, 7.0 * GIB)
_UNIFIED = Range(0.0, 1.8 * GIB, 4.5 * GIB)
_STATES = Range(0.0, 0.3 * GIB, 1.5 * GIB)
_OLD_ENGINE = Range(0.0, 0.25 * GIB, 3.5 * GIB)
_UNKNOWN_VERSION = Range(0.0, 0.3 * GIB, 2.0 * GIB)
_MARGIN = Range(0.8, 1.0, 1.2)


def overhead(
    shape: ModelShape,
    layout: Layout,
    choice: EngineChoice,
    batch: Batch,
    version: Version | None,
    gpu_name: str,
) -> Range:
    """Bytes per GPU beside weights and KV cache."""
    forward = forward_bytes(shape, layout, batch.tokens)
    low = max(forward, _sampling(shape, batch.requests, UNSORTED_COPIES))
    copies = SORTED_COPIES if version is None or version < UNSORTED_FROM else UNSORTED_COPIES
    middle = max(forward, _sampling(shape, batch.requests, copies))
    if not batch.requests_stated:
        # The limit may be another: vLLM lowers it for some models.
        low = max(forward, _sampling(shape, min(batch.requests, 256), UNSORTED_COPIES))
    high = max(forward, _sampling(shape, batch.requests, SORTED_COPIES))
    peak = Range(low * _MARGIN.low, middle, high * _MARGIN.high)
    return _add(peak, *_fixed(shape, layout, choice, version, gpu_name))


def _fixed(
    shape: ModelShape,
    layout: Layout,
    choice: EngineChoice,
    version: Version | None,
    gpu_name: str,
) -> list[Range]:
    parts = [_CONTEXT]
    ranks = layout.tensor * layout.data
    if layout.gpus > 1:
        parts.append(_COLLECTIVES)
    if ranks > 4:
        parts.append(_LARGE_GROUP)
    if not choice.eager and (version is None or version >= GRAPHS_COUNTED_FROM):
        parts.append(_GRAPHS)
    if shape.multimodal:
        parts.append(_ENCODER)
    if shape.latent is not None:
        parts.append(_SPARSE if shape.latent.index_head_dim else _LATENT)
    if shape.linear is not None:
        parts.append(_STATES)
    if "gb10" in gpu_name.lower():
        parts.append(_UNIFIED)
    if version is None:
        parts.append(_UNKNOWN_VERSION)
    elif version < V1_ENGINE:
        parts.append(_OLD_ENGINE)
    return parts


def forward_bytes(shape: ModelShape, layout: Layout, tokens: int) -> float:
    """The widest moment of a layer: the residual stream and what the MLP holds at once.

    Dense: gate, up and their product (3 x intermediate / TP) beside 3 x hidden. Experts: for each
    token its per_token copies go through two buffers, one as wide as the larger of hidden and
    2 x intermediate / TP, one of intermediate / TP (fused_experts); vLLM cuts a step into pieces
    of 32,768 tokens there.
    """
    element = 2.0
    width = 3.0 * (shape.intermediate or 4 * shape.hidden) / layout.tensor
    if not shape.gated_mlp:
        width /= 1.5
    dense = tokens * width
    moe = shape.experts
    if moe is not None:
        share = 1 if layout.expert else layout.expert_ranks
        inner = moe.intermediate / share
        pieces = min(tokens * layout.data, 32768)
        routed = pieces * moe.per_token * (max(shape.hidden, 2 * inner) + inner)
        shared = tokens * 3.0 * moe.shared_intermediate / layout.tensor
        dense = max(routed + shared, 0.0 if all(moe.layers) else dense)
    attention = tokens * 2.0 * shape.heads * shape.head_dim / layout.tensor
    return element * (tokens * 3.0 * shape.hidden + max(dense, attention))


def _sampling(shape: ModelShape, requests: int, copies: float) -> float:
    if shape.pooling or shape.vocab is None:
        return 0.0
    return requests * shape.vocab * 4.0 * copies


def _add(*parts: Range) -> Range:
    return Range(
        sum(part.low for part in parts),
        sum(part.middle for part in parts),
        sum(part.high for part in parts),
    )
