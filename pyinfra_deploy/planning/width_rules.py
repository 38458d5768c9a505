"""What tensor parallelism cuts evenly or not at all: the vocabulary and the width of MLPs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.planning.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.planning.layout import Layout
    from pyinfra_deploy.planning.model_shape import ModelShape

# vLLM rounds the vocabulary up to this, whatever the layout, and divides it by the tensor parallel
# size then (DEFAULT_VOCAB_PADDING_SIZE of vocab_parallel_embedding.py; read in 0.17.1 and in a
# branch of a later one, where it is the same).
VOCABULARY_PADDING = 64
_VOCABULARY_SOURCE = "vLLM: VocabParallelEmbedding (pad_vocab_size, then divide)"
_WIDTH_SOURCE = "vLLM: MergedColumnParallelLinear, RowParallelLinear (divide)"


def padded_vocabulary(vocab: int) -> int:
    """The rows of the embedding that vLLM keeps, over all ranks."""
    return -(-vocab // VOCABULARY_PADDING) * VOCABULARY_PADDING


def width_findings(shape: ModelShape, layout: Layout, host: str) -> Iterator[Finding]:
    """What cannot be cut into equal parts, quantised or not."""
    yield from _vocabulary(shape, layout, host)
    yield from _widths(shape, layout, host)


def _vocabulary(shape: ModelShape, layout: Layout, host: str) -> Iterator[Finding]:
    padded = padded_vocabulary(shape.vocab or 0)
    if padded % layout.tensor == 0:
        return
    yield Finding(
        "parallel.vocabulary",
        "refuse",
        host,
        str(layout),
        f"the vocabulary of {shape.vocab}, which vLLM rounds up to {padded}, cannot be shared by "
        f"{layout.tensor} GPUs: vLLM stops with '{padded} is not divisible by {layout.tensor}'.",
        f"set tensor-parallel-size to {_fitting(shape, layout.tensor)}, the rest as "
        "pipeline-parallel-size or data-parallel-size.",
        f"vocab_size: {shape.vocab}",
        _VOCABULARY_SOURCE,
    )


def _widths(shape: ModelShape, layout: Layout, host: str) -> Iterator[Finding]:
    for what, size in dense_widths(shape):
        if size % layout.tensor == 0:
            continue
        # With experts over several copies newer versions keep shared experts whole on each rank
        # (use_sequence_parallel_moe), older ones cut them.
        whole = what != "intermediate_size" and layout.expert and layout.data > 1
        yield Finding(
            "parallel.width",
            "warn" if whole else "refuse",
            host,
            str(layout),
            f"{what} {size} cannot be cut over {layout.tensor} GPUs: vLLM stops with an "
            "AssertionError while it builds the MLP"
            + (", unless its version keeps shared experts whole on each GPU." if whole else "."),
            f"set tensor-parallel-size to {_fitting(shape, layout.tensor)}, the rest as "
            "pipeline-parallel-size or data-parallel-size; expert parallelism does not change "
            "these layers.",
            f"{what}: {size}",
            _WIDTH_SOURCE,
        )


def dense_widths(shape: ModelShape) -> list[tuple[str, int]]:
    """(name, width) of the MLPs that tensor parallelism cuts, whatever happens to the experts."""
    moe = shape.experts
    found = []
    if shape.intermediate is not None and (moe is None or not all(moe.layers)):
        found.append(("intermediate_size", shape.intermediate))
    if moe is not None and moe.shared_intermediate:
        found.append(("the shared experts' width", moe.shared_intermediate))
    return found


def _fitting(shape: ModelShape, tensor: int) -> int:
    """The largest number of GPUs below `tensor` that everything can be shared by."""
    sizes = [shape.heads, padded_vocabulary(shape.vocab or 0)]
    sizes += [size for _, size in dense_widths(shape)]
    for found in range(min(tensor - 1, shape.heads), 1, -1):
        kv_heads = shape.latent is not None or not (
            shape.kv_heads % found and found % shape.kv_heads
        )
        if kv_heads and not any(size % found for size in sizes):
            return found
    return 1
