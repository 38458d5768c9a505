"""A parallel layout: how the GPUs of a host share one model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """tensor x pipeline x data GPUs. expert: whole experts per GPU (--enable-expert-parallel), over
    tensor x data GPUs, instead of slices of each."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def expert_ranks(self) -> int:
        """GPUs that share the experts of one layer: vLLM spreads them over TP x DP, in slices
        without expert parallelism, whole with it."""
        return self.tensor * self.data

    def __str__(self) -> str:
        parts = [f"TP{self.tensor}"]
        if self.pipeline > 1:
            parts.append(f"PP{self.pipeline}")
        if self.data > 1:
            parts.append(f"DP{self.data}")
        return " x ".join(parts) + (" + EP" if self.expert else "")

    def arguments(self) -> dict[str, int | bool]:
        """The engine.args that ask for it."""
        found: dict[str, int | bool] = {"tensor-parallel-size": self.tensor}
        if self.pipeline > 1:
            found["pipeline-parallel-size"] = self.pipeline
        if self.data > 1:
            found["data-parallel-size"] = self.data
        if self.expert:
            found["enable-expert-parallel"] = True
        return found


def stage_layers(layers: int, stages: int) -> tuple[range, ...]:
    """Which layers each pipeline stage computes.

    As vLLM cuts them (vllm/distributed/utils.py get_pp_indices): evenly, and what is left over one
    each to the stages before the last, which has the output layer to carry.
    """
    sizes = [layers // stages] * stages
    for back in range(2, layers % stages + 2):
        sizes[-back] += 1
    found, start = [], 0
    for size in sizes:
        found.append(range(start, start + size))
        start += size
    return tuple(found)
