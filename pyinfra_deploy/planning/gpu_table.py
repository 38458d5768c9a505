"""A GPU's row in the table of models, and what follows where nvidia-smi does not print it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyinfra_deploy.planning import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyinfra_deploy.facts.hardware import Gpu, Hardware
    from pyinfra_deploy.planning.tables.rows import GpuModel


def bare_name(name: str) -> str:
    """The product name without "NVIDIA " in front, which drivers before 465 leave out."""
    return " ".join(name.split()).removeprefix("NVIDIA ")


@functools.cache
def _by_name() -> dict[str, GpuModel]:
    return {bare_name(row.name): row for row in tables.gpu_models().models}


def model_row(gpu: Gpu) -> GpuModel | None:
    """By the exact product name: "H20" must not stand for an H200, nor a desktop for a laptop."""
    return _by_name().get(bare_name(gpu.name))


def capability_of(gpu: Gpu) -> tuple[int, int] | None:
    """As read; older nvidia-smi do not print it, then that of the model's row."""
    if gpu.compute_capability is not None:
        return gpu.compute_capability
    row = model_row(gpu)
    return row.capability if row else None


def is_passive(gpu: Gpu) -> bool:
    """No fan of its own: as read, else as the model's row says."""
    if gpu.fan_present is not None:
        return not gpu.fan_present
    row = model_row(gpu)
    return row is not None and row.passive is True


def which(hardware: Hardware, wrong: Callable[[Gpu], bool]) -> list[Gpu]:
    return [gpu for gpu in hardware.gpus if wrong(gpu)]


def of_each(gpus: list[Gpu], say: Callable[[Gpu], str]) -> str:
    """What was read of each GPU, as evidence; at most four, the rest says the same."""
    lines = [f"GPU {gpu.index}: {say(gpu)}" for gpu in gpus[:4]]
    return "; ".join(lines) + (f"; and {len(gpus) - 4} more" if len(gpus) > 4 else "")


def named(gpus: Iterable[Gpu]) -> str:
    """ "GPU 2 (0000:38:00.0)", "GPUs 0-3 and 6", for the subject of a finding."""
    some = list(gpus)
    if len(some) == 1:
        address = some[0].pci_address
        return f"GPU {some[0].index}" + (f" ({address})" if address else "")
    return "GPUs " + index_ranges([gpu.index for gpu in some])


def index_ranges(indices: Iterable[int]) -> str:
    """[0, 1, 2, 3, 6] -> "0-3 and 6"."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    parts = [part for run in runs for part in _run(run)]
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def _run(run: list[int]) -> list[str]:
    return [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(index) for index in run]
