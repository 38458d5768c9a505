"""The KV cache as vLLM lays it out: bytes per token and GPU, and how many tokens and requests a
given amount of memory holds.

Exact, not an estimate: vllm/v1/core/kv_cache_utils.py (read in 0.33.0) and the tokens printed in
recorded starts of 0.6 to 0.25 agree with it to the block. Layers that cache alike form groups; all
groups draw blocks of one size from one pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from pyinfra_deploy.planning.layout import stage_layers

if TYPE_CHECKING:
    from pyinfra_deploy.planning.engine_choice import EngineChoice
    from pyinfra_deploy.planning.layout import Layout
    from pyinfra_deploy.planning.model_shape import Attention, ModelShape

BLOCK_TOKENS = 16
# One pool for layers of several kinds came with V1; before, windows were cached like full layers.
_POOLED = Version("0.10.0")
# Before, "GPU KV cache size" of a model with several groups was the blocks of one group; since, it
# is the concurrency times max-model-len.
_PRINTED_BY_REQUEST = Version("0.20.2")
# FlashMLA's format for sparse attention: 512 FP8 values, 16 bytes of scales, 64 rotary values in
# bfloat16; the indexer keeps its vector in FP8 with a 4-byte scale.
_SPARSE_TOKEN_BYTES = 656
_INDEX_SCALE_BYTES = 4


@dataclass(frozen=True)
class Group:
    """Layers that cache alike. block_tokens: of this group's blocks. 0 bytes_per_token: a state of
    fixed size, whatever the length."""

    kind: Attention
    layers: int
    block_tokens: int
    bytes_per_token: float


@dataclass(frozen=True)
class KvCache:
    """The cache of one GPU (the fullest pipeline stage).

    bytes_per_token: what one more token of a long request takes, all layers that keep every token
    together. block_bytes: of one block of the shared pool. copies: how many ranks hold the same KV
    head, because there are fewer heads than ranks.
    """

    groups: tuple[Group, ...]
    block_bytes: float
    bytes_per_token: float
    window: int
    batch_tokens: int
    state_blocks: int
    context_parallel: int
    copies: int
    by_request: bool

    def request_blocks(self, length: int) -> int:
        """Blocks of the pool that one request of `length` tokens needs."""
        total = 0
        for group in self.groups:
            if group.kind == "linear":
                total += self.state_blocks
                continue
            held = -(-length // self.context_parallel)
            spare = 0
            if group.kind == "sliding":
                held, spare = min(self.window - 1 + self.batch_tokens, length), 1
            total += -(-held // group.block_tokens) + spare
        return total

    def request_bytes(self, length: int) -> float:
        return self.request_blocks(length) * self.block_bytes

    def blocks(self, available_bytes: float) -> int:
        return max(0, int(available_bytes // self.block_bytes))

    def concurrency(self, available_bytes: float, length: int) -> float:
        """Requests of `length` tokens that fit at once; vLLM prints it for max-model-len."""
        return self.blocks(available_bytes) / self.request_blocks(length)

    def tokens(self, available_bytes: float, max_model_len: int) -> int:
        """vLLM's "GPU KV cache size"."""
        if len(self.groups) > 1 and self.by_request:
            return int(self.concurrency(available_bytes, max_model_len) * max_model_len)
        smallest = min(group.block_tokens for group in self.groups)
        blocks = self.blocks(available_bytes) // len(self.groups)
        return blocks * smallest * self.context_parallel

    def longest(self, available_bytes: float, limit: int) -> int:
        """The largest max-model-len, up to `limit`, of which one request fits; 0 if none does."""
        blocks = self.blocks(available_bytes)
        if blocks >= self.request_blocks(limit):
            return limit
        if blocks < self.request_blocks(1):
            return 0
        low, high = 1, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.request_blocks(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


def kv_cache(
    shape: ModelShape,
    layout: Layout,
    choice: EngineChoice,
    version: Version | None,
    batch_tokens: int,
) -> KvCache | None:
    """The cache of the fullest GPU of a layout; None where the architecture's is not known."""
    if shape.cache_unknown or layout.pipeline > shape.layers:
        return None
    stages = stage_layers(shape.layers, layout.pipeline)
    caches = [
        _stage(shape, layout, choice, version, batch_tokens, stage, index == len(stages) - 1)
        for index, stage in enumerate(stages)
    ]
    return max(caches, key=lambda cache: cache.block_bytes / cache.groups[0].block_tokens)


def _stage(
    shape: ModelShape,
    layout: Layout,
    choice: EngineChoice,
    version: Version | None,
    batch_tokens: int,
    stage: range,
    last: bool,
) -> KvCache:
    counts: dict[Attention, int] = {}
    kinds = shape.attention[stage.start : stage.stop]
    for kind in ("full", "sliding", "linear"):
        if number := kinds.count(kind):
            counts[kind] = number
    speculation = choice.speculation if last else None
    if speculation is not None and speculation.draft_layers:
        counts["full"] = counts.get("full", 0) + speculation.draft_layers
    windows_pooled = version is None or version >= _POOLED
    if "sliding" in counts and (not windows_pooled or choice.context_parallel > 1):
        counts["full"] = counts.get("full", 0) + counts.pop("sliding")
    tokens = speculation.tokens if speculation is not None else 0
    layer_bytes = {kind: _layer_bytes(shape, layout, choice, kind) for kind in counts}
    groups, pool_layers = _groups(shape, counts, layer_bytes, layout, tokens)
    aligned = 1 if choice.prefix_caching else 0
    return KvCache(
        groups=groups,
        block_bytes=pool_layers
        * max(group.block_tokens * group.bytes_per_token for group in groups),
        bytes_per_token=counts.get("full", 0) * layer_bytes.get("full", 0.0),
        window=shape.sliding_window or 0,
        batch_tokens=batch_tokens,
        state_blocks=1 + tokens + aligned,
        context_parallel=choice.context_parallel,
        copies=_copies(shape, layout.tensor),
        by_request=version is None or version >= _PRINTED_BY_REQUEST,
    )


def _groups(
    shape: ModelShape,
    counts: dict[Attention, int],
    layer_bytes: dict[Attention, float],
    layout: Layout,
    draft_tokens: int,
) -> tuple[tuple[Group, ...], int]:
    """(groups, layers per group). A group has as many layers as the rarest kind, unless the kinds
    are within a quarter of each other; a page has the same bytes in all of them."""
    if len(counts) == 1:
        kind, layers = next(iter(counts.items()))
        if kind == "linear":
            return (Group(kind, layers, 1, _state(shape, layout, draft_tokens)),), layers
        return (Group(kind, layers, BLOCK_TOKENS, layer_bytes[kind]),), layers
    fewest, most = min(counts.values()), max(counts.values())
    per_group = most if most < fewest * 1.25 else fewest
    block = dict.fromkeys(counts, BLOCK_TOKENS)
    if "linear" in counts:
        # Attention blocks grow until a page of theirs holds a state.
        widest = max(value for kind, value in layer_bytes.items() if kind != "linear")
        state = _state(shape, layout, draft_tokens)
        tokens = BLOCK_TOKENS * -(-int(state) // int(BLOCK_TOKENS * widest))
        block = dict.fromkeys(counts, max(BLOCK_TOKENS, tokens))
    page = max(block[kind] * layer_bytes[kind] for kind in counts if kind != "linear")
    found = []
    for kind in sorted(counts):
        size = layer_bytes[kind] if kind != "linear" else 0.0
        tokens = int(page // size) if size else block[kind]
        for _ in range(-(-counts[kind] // per_group)):
            found.append(Group(kind, per_group, tokens, size))
    return tuple(found), per_group


def _layer_bytes(shape: ModelShape, layout: Layout, choice: EngineChoice, kind: Attention) -> float:
    """Bytes per token of one layer on one GPU; 0 for a state of fixed size."""
    if kind == "linear":
        return 0.0
    element = cache_element_bytes(shape, choice)
    latent = shape.latent
    if latent is not None:
        width = latent.kv_lora_rank + latent.rope_head_dim
        if latent.index_head_dim is None:
            return width * element
        index = latent.index_head_dim + _INDEX_SCALE_BYTES
        return (_SPARSE_TOKEN_BYTES if element == 1 else width * element) + index
    heads, dim = shape.kv_heads, shape.head_dim
    if kind == "full":
        heads, dim = shape.full_kv_heads or heads, shape.full_head_dim or dim
    return 2 * rank_kv_heads(heads, layout.tensor) * dim * element


def rank_kv_heads(kv_heads: int, tensor: int) -> int:
    """KV heads per GPU: at least one, so they are repeated when there are fewer than ranks."""
    return max(1, kv_heads // tensor)


def _copies(shape: ModelShape, tensor: int) -> int:
    if shape.latent is not None:
        return tensor
    return max(1, tensor // shape.kv_heads)


def cache_element_bytes(shape: ModelShape, choice: EngineChoice) -> float:
    """auto follows the checkpoint's own FP8 scheme, else the dtype the model runs in."""
    wanted = choice.kv_cache_dtype.lower()
    if wanted == "auto":
        if shape.quantization is not None and shape.quantization.kv_cache_fp8:
            return 1
        if choice.dtype in ("float32", "float"):
            return 4
        return 4 if shape.dtype == "float32" and choice.dtype == "float32" else 2
    return 1 if wanted.startswith(("fp8", "int8")) else 2


def _state(shape: ModelShape, layout: Layout, draft_tokens: int) -> float:
    """Bytes of one layer's state of gated delta net: the convolution's last inputs (one more per
    speculative token) in 16 bits, and a matrix per head."""
    linear = shape.linear
    if linear is None:
        return 0.0
    keys = linear.key_heads * linear.key_head_dim
    values = linear.value_heads * linear.value_head_dim
    conv = (2 * keys + values) / layout.tensor * (linear.conv_kernel - 1 + draft_tokens) * 2
    matrix = linear.value_heads / layout.tensor * linear.value_head_dim * linear.key_head_dim
    return conv + matrix * linear.state_bytes
