"""The memory budget of one GPU: weights, working memory, KV cache, and what that serves.

Weights and bytes per token are counted; working memory is an estimate, so what is left for the
cache is a range. Plans refuse on what even its high end cannot hold and warn on its low end. Once
the engine has started, its own figures replace the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from pyinfra_deploy.facts.hardware import Gpu
from pyinfra_deploy.planning.engine_choice import batch_of, parse_version
from pyinfra_deploy.planning.gpu_memory import GIB, Range, usable_bytes
from pyinfra_deploy.planning.kv_cache import KvCache, kv_cache
from pyinfra_deploy.planning.overhead import overhead
from pyinfra_deploy.planning.quantization import online
from pyinfra_deploy.planning.weights import count_bytes, stage_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyinfra_deploy.planning.engine_choice import EngineChoice
    from pyinfra_deploy.planning.engine_log import EngineFigures
    from pyinfra_deploy.planning.layout import Layout
    from pyinfra_deploy.planning.model_shape import ModelShape

TYPICAL_TOKENS = 2048
_FALLBACK_CONTEXT = 32768


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes per GPU, for the fullest GPU of the layout.

    total: what torch sees of the GPU. granted: total times gpu-memory-utilization. available: left
    for the KV cache; below 0 means that the engine does not start. tokens, requests and
    longest_context: of the whole engine (all data parallel copies but longest_context, which is of
    one request); None where the cache of the architecture is not known. source: estimate, or
    measured when `available` is the engine's own figure.
    """

    layout: Layout
    gpu_name: str
    total: Range
    utilization: float
    granted: Range
    weights_bytes: float
    overhead: Range
    available: Range
    max_model_len: int
    typical_tokens: int
    cache: KvCache | None
    tokens: Range | None
    requests: Range | None
    typical_requests: Range | None
    longest_context: Range | None
    source: Literal["estimate", "measured"] = "estimate"

    @property
    def cache_bytes_per_token(self) -> float | None:
        return self.cache.bytes_per_token if self.cache is not None else None

    @property
    def request_bytes(self) -> float | None:
        """KV cache of one request of max-model-len, per GPU."""
        return self.cache.request_bytes(self.max_model_len) if self.cache is not None else None


def smallest_gpu(gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU with the least memory: it decides, since all ranks get the same number of blocks.
    None where not one tells its memory."""
    told = [gpu for gpu in gpus if gpu.memory_total_mib]
    if not told:
        return None
    return min(told, key=lambda gpu: (gpu.memory_total_mib or 0) - (gpu.memory_reserved_mib or 0))


def budget(
    shape: ModelShape,
    gpu: Gpu,
    layout: Layout,
    choice: EngineChoice,
    vllm_version: str | None,
    typical_tokens: int = TYPICAL_TOKENS,
) -> MemoryBudget | None:
    """The budget of a layout on GPUs like `gpu`; None where its memory is not known, or where there
    are more pipeline stages than layers."""
    # Without what differs between equal cards, so that a fleet of equal hosts is computed once.
    alike = Gpu(
        0,
        gpu.name,
        memory_total_mib=gpu.memory_total_mib,
        memory_reserved_mib=gpu.memory_reserved_mib,
    )
    return _budget(shape, alike, layout, choice, vllm_version, typical_tokens)


@lru_cache(maxsize=4096)
def _budget(
    shape: ModelShape,
    gpu: Gpu,
    layout: Layout,
    choice: EngineChoice,
    vllm_version: str | None,
    typical_tokens: int,
) -> MemoryBudget | None:
    total = usable_bytes(gpu)
    if total is None or layout.pipeline > shape.layers:
        return None
    if choice.pooling:
        shape = replace(shape, pooling=True)
    version = parse_version(vllm_version)
    context = choice.max_model_len or shape.native_context or _FALLBACK_CONTEXT
    batch = batch_of(choice, version, gpu.name, int(total.middle), context)
    utilization = choice.utilization_for(version)
    granted = total.scaled(utilization)
    weights = loaded_bytes(shape, layout, choice)
    needed = overhead(shape, layout, choice, batch, version, gpu.name)
    spent = Range(needed.low + weights, needed.middle + weights, needed.high + weights)
    available = granted.minus(spent)
    if choice.kv_cache_memory_bytes is not None:
        available = Range(*(float(choice.kv_cache_memory_bytes),) * 3)
    found = MemoryBudget(
        layout=layout,
        gpu_name=gpu.name,
        total=total,
        utilization=utilization,
        granted=granted,
        weights_bytes=weights,
        overhead=needed,
        available=available,
        max_model_len=context,
        typical_tokens=min(typical_tokens, context),
        cache=kv_cache(shape, layout, choice, version, batch.tokens),
        tokens=None,
        requests=None,
        typical_requests=None,
        longest_context=None,
    )
    return _with_capacity(found, _longest_possible(shape, choice, context))


def _longest_possible(shape: ModelShape, choice: EngineChoice, context: int) -> int:
    """vLLM refuses more than the model was made for, except with a rope scaling of its own."""
    native = shape.native_context
    return native if native and not choice.rope_override else max(context, native or 0)


def loaded_bytes(shape: ModelShape, layout: Layout, choice: EngineChoice) -> float:
    """Weights on the fullest GPU."""
    quantization = shape.quantization
    own_mtp = choice.speculation is not None and choice.speculation.own_layers
    if quantization is None and choice.quantization in ("fp8", "fp8_per_tensor", "fp8_per_block"):
        # Quantised while loading: the checkpoint's size says nothing about what stays in memory.
        plain = count_bytes(shape, None)
        parts = count_bytes(shape, online("fp8"))
        total = round(shape.weights.total_bytes * parts.total / plain.total)
        shape = replace(shape, weights=replace(shape.weights, total_bytes=total))
    else:
        parts = count_bytes(shape, quantization)
    stages = stage_bytes(shape, parts, layout, own_mtp)
    return max(0.0, max(stages) - choice.offload_bytes)


def measured(found: MemoryBudget, figures: EngineFigures) -> MemoryBudget:
    """The budget with the engine's own figures, from a start of the same release and GPU."""
    if figures.available_bytes is None:
        return found
    own = figures.available_bytes
    weights = figures.weights_bytes or found.weights_bytes
    rest = found.granted.middle - weights - own
    return _with_capacity(
        replace(
            found,
            weights_bytes=weights,
            overhead=Range(rest, rest, rest),
            available=Range(own, own, own),
            source="measured",
        ),
        found.max_model_len,
    )


def _with_capacity(found: MemoryBudget, limit: int) -> MemoryBudget:
    cache = found.cache
    if cache is None:
        return found
    data = found.layout.data
    ends = found.available

    def each(count: float) -> float:
        return count * data

    return replace(
        found,
        tokens=Range(*(each(cache.tokens(one, found.max_model_len)) for one in ends)),
        requests=Range(*(each(cache.concurrency(one, found.max_model_len)) for one in ends)),
        typical_requests=Range(
            *(each(cache.concurrency(one, found.typical_tokens)) for one in ends)
        ),
        longest_context=Range(*(float(cache.longest(one, limit)) for one in ends)),
    )


def in_gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
