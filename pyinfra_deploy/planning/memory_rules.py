"""What a memory budget means for a start: refused on the high end of the estimate, warned about on
the low end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.memory import in_gib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.planning.engine_choice import EngineChoice
    from pyinfra_deploy.planning.memory import MemoryBudget
    from pyinfra_deploy.planning.model_shape import ModelShape

ESTIMATE = "docs/memory-estimates.md"
_EARLY_V1 = (Version("0.8.0"), Version("0.9.0"))


def memory_findings(found: MemoryBudget, host: str) -> tuple[Finding, ...]:
    """Whether the weights fit, and beside them one request of max-model-len."""
    return tuple(_findings(found, host))


def _findings(found: MemoryBudget, host: str) -> Iterator[Finding]:
    room, need = found.available, found.request_bytes
    evidence = (
        f"{found.gpu_name}: {in_gib(found.total.middle)} x {found.utilization:g} = "
        f"{in_gib(found.granted.middle)} granted; weights {in_gib(found.weights_bytes)}, other "
        f"{in_gib(found.overhead.low)} to {in_gib(found.overhead.high)}"
    )
    if room.high <= 0:
        yield Finding(
            "memory.weights-do-not-fit",
            "refuse",
            host,
            str(found.layout),
            f"the weights do not fit: {in_gib(found.weights_bytes)} per GPU, of "
            f"{in_gib(found.granted.middle)} that gpu-memory-utilization {found.utilization:g} "
            "grants.",
            "spread the model over more GPUs (tensor x pipeline parallel), or choose a smaller "
            "or a quantised variant.",
            evidence,
            ESTIMATE,
        )
    elif need is not None and need > room.high:
        yield Finding(
            "memory.context-does-not-fit",
            "refuse",
            host,
            "engine.args.max-model-len",
            f"one request of {found.max_model_len} tokens needs {in_gib(need)} of KV cache per "
            f"GPU, and at most {in_gib(room.high)} are left: vLLM refuses to start.",
            _shorter(found),
            evidence,
            ESTIMATE,
        )
    elif need is not None and need > room.low:
        yield Finding(
            "memory.context-may-not-fit",
            "warn",
            host,
            "engine.args.max-model-len",
            f"one request of {found.max_model_len} tokens needs {in_gib(need)} of KV cache per "
            f"GPU, and {in_gib(max(room.low, 0))} to {in_gib(room.high)} are left.",
            _shorter(found),
            evidence,
            ESTIMATE,
        )
    elif need is None and room.low <= 0:
        yield Finding(
            "memory.tight",
            "warn",
            host,
            str(found.layout),
            "the weights may leave nothing for the KV cache, of which this plan knows no size.",
            "lower max-num-batched-tokens and max-num-seqs, or spread the model over more GPUs.",
            evidence,
            ESTIMATE,
        )


def _shorter(found: MemoryBudget) -> str:
    """The way out that is nearest."""
    longest = found.longest_context
    steps = []
    if longest is not None and longest.low >= 1024:
        steps.append(f"set max-model-len to {_rounded(longest.low)}, which fits in any case")
    elif longest is not None and longest.high >= 1024:
        steps.append(f"set max-model-len to {_rounded(longest.middle)} and try")
    steps.append("lower max-num-seqs or max-num-batched-tokens")
    if found.utilization < 0.92:
        steps.append(f"raise gpu-memory-utilization from {found.utilization:g}")
    steps.append("use more GPUs")
    return ", or ".join(steps) + "."


def _rounded(tokens: float) -> int:
    return max(1, int(tokens) // 256 * 256) if tokens >= 256 else int(tokens)


def context_findings(shape: ModelShape, choice: EngineChoice, host: str) -> Iterator[Finding]:
    """max-model-len against what the model was made for."""
    length, native = choice.max_model_len, shape.native_context
    if length is None or native is None or length <= native or choice.rope_override:
        return
    yarn = shape.rope is None and "Qwen" in shape.architecture
    factor = -(-length // 32768)
    yield Finding(
        "model.context-too-long",
        "refuse",
        host,
        "engine.args.max-model-len",
        f"{shape.architecture} is made for {native} tokens: vLLM refuses max-model-len {length}.",
        f"set max-model-len to {native} or less"
        + (
            f", or ask for YaRN in hf-overrides (rope_type yarn, factor {min(4, factor)}, "
            "original_max_position_embeddings 32768: up to 131072 tokens, at some cost for short "
            "texts)."
            if yarn
            else ", or ask for a rope scaling that the model's page recommends in hf-overrides."
        ),
        f"config.json: {native} tokens",
        "Qwen documentation, deployment/vllm",
    )


def version_findings(
    shape: ModelShape, choice: EngineChoice, version: Version | None, host: str
) -> Iterator[Finding]:
    """Versions that ran out of memory where arithmetic says there is enough."""
    if version is None or not _EARLY_V1[0] <= version < _EARLY_V1[1] or choice.eager:
        return
    yield Finding(
        "memory.early-v1",
        "warn",
        host,
        "runtime.vllm",
        f"vLLM {version} ran out of memory while capturing graphs in starts of {_family(shape)} "
        "that should have fitted.",
        "use a newer vLLM, or set max-num-seqs to 256 or less and leave gpu-memory-utilization at "
        "0.9 or below; enforce-eager: true avoids the graphs.",
        f"runtime.vllm: {version}",
        "vllm-project/vllm#17462, #17469, #18446",
    )


def _family(shape: ModelShape) -> str:
    return "Qwen3" if "Qwen3" in shape.architecture else "several models"
