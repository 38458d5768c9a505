"""Quantised weights can only be cut where their scales begin: FP8 blocks, GPTQ and AWQ groups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from packaging.version import Version

from pyinfra_deploy.planning import tables
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.width_rules import dense_widths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.planning.layout import Layout
    from pyinfra_deploy.planning.model_shape import ModelShape

# vLLM 0.33.0's refine_fp8_moe_block_shape: the smallest block into which it cuts the scales.
_LEAST_REFINED = 32
# From here on merged projections (gate and up; Q, K and V) are let through, whatever their widths:
# _maybe_allow_fp8_block_shape_mismatch of linear.py (vllm-project/vllm#30836). What follows them,
# cut by rows (down, O), is checked as before.
_MERGED_LET_THROUGH = Version("0.14.0")
_LINEAR_SOURCE = "vLLM: validate_fp8_block_shape (0.8.5 to 0.33.0)"
_GROUP_SOURCE = "vLLM: marlin_utils.py verify_marlin_supports_shape, awq.py create_weights"
_GROUPED = frozenset({"gptq", "awq", "compressed-tensors", "auto-round"})


def fp8_blocks(
    shape: ModelShape, layout: Layout, version: Version | None, host: str
) -> Iterator[Finding]:
    """Block-wise FP8: what a GPU gets must be whole blocks."""
    quantization = shape.quantization
    if quantization is None or quantization.block is None or layout.tensor * layout.data == 1:
        return
    block_n, block_k = quantization.block
    moe = shape.experts
    if moe is not None and not layout.expert:
        ranks = layout.expert_ranks
        width = moe.intermediate // ranks
        if moe.intermediate % ranks == 0 and (width % block_n or width % block_k):
            yield _experts(shape, layout, version, host, width)
    if layout.tensor == 1:
        return
    for what, size in dense_widths(shape):
        sure = "refuse" if what == "intermediate_size" else "warn"
        yield from _linear(shape, layout, host, what, size, sure)
    if shape.latent is None:
        size = shape.heads * shape.head_dim
        yield from _linear(shape, layout, host, "heads x head_dim", size, "warn")
        if version is None or version < _MERGED_LET_THROUGH:
            # Each rank has one KV head at least (QKVParallelLinear).
            size = max(shape.kv_heads, layout.tensor) * shape.head_dim
            yield from _linear(shape, layout, host, "KV heads x head_dim", size, "warn")


def _experts(
    shape: ModelShape, layout: Layout, version: Version | None, host: str, width: int
) -> Finding:
    quantization = shape.quantization
    block_n, block_k = (quantization.block if quantization is not None else None) or (1, 1)
    whole = shape.experts.intermediate if shape.experts is not None else width
    refined = math.gcd(block_n, block_k, width, shape.hidden)
    serialized = quantization is not None and quantization.method == "fp8"
    cut = (
        f"{layout} cuts the experts' {whole} columns into {width}, which is not a multiple of the "
        f"FP8 block of {block_n}"
    )
    fix = expert_fix(shape, layout)
    evidence = (
        f"moe_intermediate_size {whole} / {layout.expert_ranks} = {width}, "
        f"weight_block_size [{block_n}, {block_k}]"
    )
    known = tables.vllm_versions().fp8_block_cut
    works = version is not None and version >= known.works_from
    if works and serialized and refined >= _LEAST_REFINED:
        return Finding(
            "parallel.fp8-blocks-refined",
            "note",
            host,
            str(layout),
            f"{cut}; vLLM {version} cuts the scales to blocks of {refined}, which only its Triton "
            "kernels compute.",
            f"compare its speed with whole blocks: {fix}",
            evidence,
            known.source,
        )
    # A later patch of the last minor version that was seen to refuse is taken to refuse too.
    refused = version is not None and version.release[:2] <= known.refused_through.release[:2]
    if version is None or not (refused or works):
        which = "without a version" if version is None else f"for vLLM {version}"
        return Finding(
            "parallel.fp8-blocks-unknown",
            "warn",
            host,
            str(layout),
            f"{cut}. vLLM refuses that up to {known.refused_through} and takes it from "
            f"{known.works_from}; {which} it is not known ({known.doubt}).",
            fix,
            evidence,
            known.source,
        )
    return Finding(
        "parallel.fp8-blocks",
        "refuse",
        host,
        str(layout),
        f"{cut}: vLLM {version} stops with 'The output_size of gate's and up's weight = {width} is "
        f"not divisible by weight quantization block_n = {block_n}'.",
        fix,
        evidence,
        known.source,
    )


def expert_fix(shape: ModelShape, layout: Layout) -> str:
    """Both ways out: whole experts per GPU, or fewer slices and more pipeline stages."""
    block = shape.quantization.block if shape.quantization is not None else None
    whole = shape.experts.intermediate if shape.experts is not None else 0
    fixes = ["add enable-expert-parallel: true"]
    for tensor in range(min(layout.tensor - 1, shape.heads), 0, -1):
        if layout.tensor % tensor or shape.heads % tensor or block is None:
            continue
        width, rest = divmod(whole, tensor * layout.data)
        if rest == 0 and width and width % block[0] == 0 and width % block[1] == 0:
            stages = layout.pipeline * layout.tensor // tensor
            fixes.append(
                f"use tensor-parallel-size: {tensor} with pipeline-parallel-size: {stages}"
            )
            break
    return ", or ".join(fixes) + "."


def _linear(
    shape: ModelShape, layout: Layout, host: str, what: str, size: int, severity: str
) -> Iterator[Finding]:
    block = shape.quantization.block if shape.quantization is not None else None
    if block is None:
        return
    part, rest = divmod(size, layout.tensor)
    # What cannot be cut at all is refused as such.
    if rest or (part % block[0] == 0 and part % block[1] == 0):
        return
    sure = severity == "refuse"
    yield Finding(
        "parallel.fp8-blocks-linear",
        "refuse" if sure else "warn",
        host,
        str(layout),
        f"{what} {size} over {layout.tensor} GPUs is {part} each, not a multiple "
        f"of the FP8 block of {block[0]}"
        + (
            ": vLLM stops with 'is not divisible by weight quantization block'."
            if sure
            else "; vLLM stops there if the checkpoint has these layers in FP8."
        ),
        f"set tensor-parallel-size to {_smaller(size, layout.tensor, block)}; expert parallelism "
        "does not change these layers.",
        f"weight_block_size [{block[0]}, {block[1]}]",
        _LINEAR_SOURCE,
    )


def _smaller(size: int, tensor: int, block: tuple[int, int]) -> int:
    for smaller in range(min(tensor - 1, size // block[0]), 1, -1):
        part, rest = divmod(size, smaller)
        if rest == 0 and tensor % smaller == 0 and part % block[0] == 0 and part % block[1] == 0:
            return smaller
    return 1


def scale_groups(shape: ModelShape, layout: Layout, host: str) -> Iterator[Finding]:
    """GPTQ, AWQ and their like: a GPU's part of a row must be whole groups."""
    quantization = shape.quantization
    if (
        quantization is None
        or quantization.group_size is None
        or quantization.method not in _GROUPED
        or layout.tensor == 1
    ):
        return
    group = quantization.group_size
    moe = shape.experts
    widths: list[tuple[str, int, int]] = []
    if shape.intermediate is not None and (moe is None or not all(moe.layers)):
        widths.append(("intermediate_size", shape.intermediate, layout.tensor))
    if moe is not None and not layout.expert:
        widths.append(("moe_intermediate_size", moe.intermediate, layout.expert_ranks))
    if shape.latent is None:
        widths.append(("heads x head_dim", shape.heads * shape.head_dim, layout.tensor))
    for what, size, ranks in widths:
        if size % ranks == 0 and (size // ranks) % group:
            yield Finding(
                "parallel.scale-groups",
                "warn" if what == "moe_intermediate_size" else "refuse",
                host,
                str(layout),
                f"{what} {size} over {ranks} GPUs is {size // ranks} each, not a multiple of the "
                f"{quantization.method} group of {group}: vLLM refuses such a cut.",
                "take a smaller tensor-parallel-size, the rest as pipeline-parallel-size, or "
                "another quantisation of the model.",
                f"group_size: {group}",
                _GROUP_SOURCE,
            )
