"""How much of a GPU's memory a CUDA process can have: less than nvidia-smi's total."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyinfra_deploy.facts.hardware import Gpu

MIB = 2**20
GIB = 2**30


class Range(NamedTuple):
    """An estimate that is said as one: it should lie between low and high, and middle is the single
    number to show."""

    low: float
    middle: float
    high: float

    def scaled(self, factor: float) -> Range:
        return Range(self.low * factor, self.middle * factor, self.high * factor)

    def minus(self, other: Range) -> Range:
        """The difference: its low end is where this is lowest and `other` highest."""
        return Range(self.low - other.high, self.middle - other.middle, self.high - other.low)


# (part of the name, nvidia-smi's total in MiB) -> GiB that torch sees. Recorded in vLLM's logs:
# docs/memory-estimates.md tells which figure is from where.
_SEEN: tuple[tuple[str, int, float], ...] = (
    ("l20", 46068, 44.53),
    ("l40s", 46068, 44.42),
    ("h100", 81559, 79.18),
    ("a100", 81920, 79.25),
    ("3090", 24576, 23.58),
    ("l4", 23034, 22.05),
    ("rtx pro 6000", 97887, 94.97),
)
# In these records the driver keeps 0.44 to 0.98 GiB; the same card differs by 0.15 GiB between
# drivers.
_KEPT = Range(0.25 * GIB, 0.48 * GIB, 0.95 * GIB)
_BETWEEN_DRIVERS = 0.15 * GIB


def usable_bytes(gpu: Gpu) -> Range | None:
    """The total that torch reports for this GPU; None where nvidia-smi gave no total.

    nvidia-smi's own "Reserved" is what the driver keeps: total minus reserved is torch's total to
    the MiB (H100: 81559 - 479 MiB = 79.18 GiB). Without it, recorded figures, else a range.
    """
    if gpu.memory_total_mib is None or gpu.memory_total_mib <= 0:
        return None
    total = gpu.memory_total_mib * MIB
    reserved = gpu.memory_reserved_mib
    if reserved is not None and 0 < reserved < gpu.memory_total_mib:
        return _around((gpu.memory_total_mib - reserved) * MIB, 0.03 * GIB)
    name = gpu.name.lower()
    if "gb10" in name:
        # Memory shared with the CPU: nothing is set aside, torch sees all of it.
        return _around(total, 0.05 * GIB)
    words = name.replace("-", " ").split()
    for part, mib, gib in _SEEN:
        if mib == gpu.memory_total_mib and (part in words or (" " in part and part in name)):
            return _around(gib * GIB, _BETWEEN_DRIVERS)
    kept = _KEPT if total > 4 * GIB else _KEPT.scaled(0.25)
    return Range(total - kept.high, total - kept.middle, total - kept.low)


def _around(middle: float, by: float) -> Range:
    return Range(middle - by, middle, middle + by)
