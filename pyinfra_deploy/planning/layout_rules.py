"""What stands against a parallel layout, apart from memory. Each rule is vLLM's own check, made
before the start instead of during it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from pyinfra_deploy.planning.architectures import architecture_of
from pyinfra_deploy.planning.block_rules import fp8_blocks, scale_groups
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.width_rules import width_findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.planning.engine_choice import EngineChoice
    from pyinfra_deploy.planning.finding import Severity
    from pyinfra_deploy.planning.layout import Layout
    from pyinfra_deploy.planning.model_shape import ModelShape

_SOURCE = "vLLM: ModelConfig.verify_with_parallel_config"
_KV_SOURCE = "vLLM: ModelConfig.get_num_kv_heads (max(1, kv // tp)) and the models' own assertion"


def layout_findings(
    shape: ModelShape,
    layout: Layout,
    choice: EngineChoice,
    version: Version | None,
    gpu_count: int,
    host: str,
) -> tuple[Finding, ...]:
    """Everything against `layout` but memory: refusals, and what should be known about it."""
    return tuple(_findings(shape, layout, choice, version, gpu_count, host))


def _findings(
    shape: ModelShape,
    layout: Layout,
    choice: EngineChoice,
    version: Version | None,
    gpu_count: int,
    host: str,
) -> Iterator[Finding]:
    yield from _gpus(layout, gpu_count, host)
    yield from _heads(shape, layout, host)
    yield from _kv_heads(shape, layout, host)
    yield from _linear_heads(shape, layout, host)
    yield from _experts(shape, layout, host)
    yield from width_findings(shape, layout, host)
    yield from fp8_blocks(shape, layout, version, host)
    yield from scale_groups(shape, layout, host)
    yield from _pipeline(shape, layout, version, host)
    yield from _context_parallel(shape, layout, choice, host)


def _gpus(layout: Layout, count: int, host: str) -> Iterator[Finding]:
    if layout.gpus > count:
        yield _finding(
            "parallel.too-many-ranks",
            "refuse",
            host,
            layout,
            f"{layout} needs {layout.gpus} GPUs, and the host has {count}.",
            f"make tensor-parallel-size x pipeline-parallel-size x data-parallel-size {count}.",
            f"{count} GPUs",
        )
    elif layout.gpus < count:
        yield _finding(
            "parallel.gpus-unused",
            "note",
            host,
            layout,
            f"{layout} uses {layout.gpus} of {count} GPUs.",
            "nothing if the rest is meant for something else; otherwise a larger layout "
            "(fleet plan --layouts), for the deploy runs one engine on a host.",
            f"{count} GPUs",
        )


def _heads(shape: ModelShape, layout: Layout, host: str) -> Iterator[Finding]:
    if shape.heads % layout.tensor:
        most = min(layout.tensor - 1, shape.heads)
        fitting = [size for size in range(1, most + 1) if shape.heads % size == 0]
        yield _finding(
            "parallel.heads",
            "refuse",
            host,
            layout,
            f"{shape.heads} attention heads cannot be shared by {layout.tensor} GPUs: vLLM stops "
            f"with 'Total number of attention heads ({shape.heads}) must be divisible by tensor "
            f"parallel size ({layout.tensor})'.",
            f"set tensor-parallel-size to a divisor of {shape.heads}: "
            + ", ".join(str(size) for size in fitting[-4:]),
            f"num_attention_heads: {shape.heads}",
            _SOURCE,
        )


def _kv_heads(shape: ModelShape, layout: Layout, host: str) -> Iterator[Finding]:
    if shape.latent is not None:
        return
    heads, tensor = shape.kv_heads, layout.tensor
    if heads % tensor and tensor % heads:
        yield _finding(
            "parallel.kv-heads",
            "refuse",
            host,
            layout,
            f"{heads} KV heads can neither be shared nor repeated evenly over {tensor} GPUs.",
            f"set tensor-parallel-size to a divisor or a multiple of {heads}.",
            f"num_key_value_heads: {heads}",
            _KV_SOURCE,
        )
    elif tensor > heads:
        yield _finding(
            "parallel.kv-replicated",
            "note",
            host,
            layout,
            f"{heads} KV heads on {tensor} GPUs: each is kept {tensor // heads} times, so the KV "
            f"cache does not shrink beyond tensor-parallel-size {heads}.",
            "tensor-parallel-size "
            f"{heads} with pipeline-parallel-size {tensor // heads} keeps each once, at the price "
            "of a longer first token.",
            f"num_key_value_heads: {heads}",
            _KV_SOURCE,
        )


def _linear_heads(shape: ModelShape, layout: Layout, host: str) -> Iterator[Finding]:
    linear = shape.linear
    if linear is None:
        return
    for name, heads in (("key", linear.key_heads), ("value", linear.value_heads)):
        if heads % layout.tensor:
            yield _finding(
                "parallel.linear-heads",
                "refuse",
                host,
                layout,
                f"{heads} {name} heads of the linear attention layers cannot be shared by "
                f"{layout.tensor} GPUs.",
                f"set tensor-parallel-size to a divisor of {heads}.",
                f"linear_num_{name}_heads: {heads}",
                "vLLM: MambaStateShapeCalculator.gated_delta_net_state_shape",
            )


def _experts(shape: ModelShape, layout: Layout, host: str) -> Iterator[Finding]:
    moe = shape.experts
    if moe is None:
        if layout.expert:
            yield _finding(
                "parallel.no-experts",
                "refuse",
                host,
                layout,
                "the model has no experts, and vLLM refuses enable-expert-parallel then.",
                "remove enable-expert-parallel from engine.args.",
                f"{shape.architecture}: no num_experts",
                "vLLM: ModelConfig._verify_with_expert_parallelism",
            )
        return
    ranks = layout.expert_ranks
    if not layout.expert:
        if moe.intermediate % ranks:
            yield _finding(
                "parallel.expert-width",
                "refuse",
                host,
                layout,
                f"experts of width {moe.intermediate} cannot be cut over {ranks} GPUs.",
                "add enable-expert-parallel: true, or take a tensor-parallel-size that divides it.",
                f"moe_intermediate_size: {moe.intermediate}",
            )
        return
    architecture = architecture_of(shape.architecture)
    even = architecture is not None and not architecture.uneven_experts
    if moe.count < ranks or (moe.count % ranks and even):
        yield _finding(
            "parallel.experts",
            "refuse",
            host,
            layout,
            f"{moe.count} experts cannot be spread over {ranks} GPUs: vLLM stops with "
            f"'n_physical_experts={moe.count} must be divisible by ep_size={ranks}'.",
            f"make tensor-parallel-size x data-parallel-size a divisor of {moe.count}.",
            f"num_experts: {moe.count}",
            "vllm-project/vllm#52435",
        )
    elif moe.count % ranks:
        yield _finding(
            "parallel.experts-uneven",
            "warn",
            host,
            layout,
            f"{moe.count} experts do not spread evenly over {ranks} GPUs: some hold one more, "
            "and not every model and version allows it.",
            f"make tensor-parallel-size x data-parallel-size a divisor of {moe.count}.",
            f"num_experts: {moe.count}",
            "vLLM: fused_moe/expert_map_manager.py",
        )


def _pipeline(
    shape: ModelShape, layout: Layout, version: Version | None, host: str
) -> Iterator[Finding]:
    stages = layout.pipeline
    if stages == 1:
        return
    if stages > shape.layers:
        yield _finding(
            "parallel.layers",
            "refuse",
            host,
            layout,
            f"{shape.layers} layers cannot be spread over {stages} pipeline stages.",
            f"set pipeline-parallel-size to {shape.layers} at most.",
            f"num_hidden_layers: {shape.layers}",
        )
    elif shape.layers % stages:
        yield _finding(
            "parallel.layers-uneven",
            "note",
            host,
            layout,
            f"{shape.layers} layers over {stages} stages: some stages have one more, and the "
            "fullest decides about memory. vLLM allows it.",
            "nothing, or set VLLM_PP_LAYER_PARTITION in engine.env.",
            f"num_hidden_layers: {shape.layers}",
            "vLLM: distributed/utils.py get_pp_indices",
        )
    architecture = architecture_of(shape.architecture)
    if architecture is None or version is None or architecture.pipeline_known_from is None:
        if architecture is None:
            yield _pipeline_unknown(shape, layout, host, "an architecture not known here")
        return
    refused = architecture.pipeline_refused_up_to
    if refused is not None and version <= Version(refused):
        yield _finding(
            "parallel.pipeline-unsupported",
            "refuse",
            host,
            layout,
            f"vLLM {version} has no pipeline parallelism for {shape.architecture}.",
            f"use tensor parallelism alone, or vLLM {architecture.pipeline_known_from} or newer.",
            f"runtime.vllm: {version}",
            "vllm-project/vllm#11539",
        )
    elif version < Version(architecture.pipeline_known_from):
        yield _pipeline_unknown(shape, layout, host, f"vLLM {version}")


def _pipeline_unknown(shape: ModelShape, layout: Layout, host: str, why: str) -> Finding:
    return _finding(
        "parallel.pipeline-unknown",
        "warn",
        host,
        layout,
        f"whether {shape.architecture} supports pipeline parallelism is not known for {why}.",
        "try it on one host first; vLLM says 'Pipeline parallelism is not supported' at once.",
        f"pipeline-parallel-size: {layout.pipeline}",
        _SOURCE,
    )


def _context_parallel(
    shape: ModelShape, layout: Layout, choice: EngineChoice, host: str
) -> Iterator[Finding]:
    ranks = choice.context_parallel
    if ranks == 1:
        return
    most = layout.tensor if shape.latent is not None else layout.tensor // shape.kv_heads
    if layout.tensor % ranks or ranks > most:
        yield _finding(
            "parallel.context-parallel",
            "refuse",
            host,
            layout,
            f"decode-context-parallel-size {ranks} does not go with {layout}: it splits what the "
            f"ranks would repeat, at most {max(most, 1)} ways here.",
            f"set decode-context-parallel-size to a divisor of {layout.tensor}, at most "
            f"{max(most, 1)}, or remove it.",
            f"num_key_value_heads: {shape.kv_heads}",
            _SOURCE,
        )


def _finding(
    identity: str,
    severity: Severity,
    host: str,
    layout: Layout,
    message: str,
    fix: str,
    evidence: str = "",
    source: str = "",
) -> Finding:
    return Finding(identity, severity, host, str(layout), message, fix, evidence, source)
