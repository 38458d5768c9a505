"""PCIe links: width under load, against what is expected and not only against the maximum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.gpu_table import model_row, named, of_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.facts.hardware import Gpu, Hardware
    from pyinfra_deploy.settings.schema import Settings

_SOURCE = (
    "nvidia-smi(1): the link may be reduced when the GPU is not in use; its maximum is the lower "
    "of GPU's and system's"
)
# Cards with a process on them, or so busy, have their links up.
_BUSY_PERCENT = 5
_FIX = (
    "drain the host, reseat the card and riser, and look at dmesg for AER lines; a slot that is "
    "wired with fewer lanes shows in its manual; then accept this finding for the host until it "
    "is repaired, if it has to serve"
)


def pcie_findings(hardware: Hardware, settings: Settings) -> Iterator[Finding]:
    wanted = settings.gpu_host.expected_pcie_width
    severe: list[Gpu] = []
    half: list[Gpu] = []
    idle: list[Gpu] = []
    for gpu in hardware.gpus:
        expected = wanted or _known_width(gpu)
        width = _width(gpu, expected)
        if width is None or expected is None:
            continue
        if width < expected:
            if not _is_up(gpu, width):
                idle.append(gpu)
            elif wanted is not None or width * 4 <= expected:
                severe.append(gpu)
            else:
                half.append(gpu)
    generation = [gpu for gpu in hardware.gpus if _is_slow_generation(gpu)]
    if severe:
        yield Finding(
            "gpu.pcie-width",
            "refuse",
            hardware.host,
            named(severe),
            _message(severe, wanted) + ": an engine over all GPUs waits for this one at each step",
            _FIX,
            evidence=_evidence(severe),
            source=_SOURCE,
        )
    if half:
        yield Finding(
            "gpu.pcie-width-half",
            "warn",
            hardware.host,
            named(half),
            _message(half, wanted),
            _FIX,
            evidence=_evidence(half),
            source=_SOURCE,
        )
    if idle:
        yield Finding(
            "gpu.pcie-width-idle",
            "note",
            hardware.host,
            named(idle),
            _message(idle, wanted) + ", while idle, which may be to save power",
            "look again while it computes: nvidia-smi --query-gpu=index,pstate,"
            "pcie.link.width.current --format=csv",
            evidence=_evidence(idle),
            source=_SOURCE,
        )
    if generation:
        yield Finding(
            "gpu.pcie-generation",
            "note",
            hardware.host,
            named(generation),
            "its PCIe link runs at a lower generation than it could",
            "look at the BIOS setting of the slot; a lower generation is normal for an idle GPU",
            evidence=_evidence(generation),
            source=_SOURCE,
        )


def _known_width(gpu: Gpu) -> int | None:
    row = model_row(gpu)
    known = row.pcie_width if row is not None else None
    return max((width for width in (known, gpu.pcie_width_max) if width), default=None)


def _width(gpu: Gpu, expected: int | None) -> int | None:
    """The width that counts: a maximum below the expectation is so at any load."""
    if expected and gpu.pcie_width_max and gpu.pcie_width_max < expected:
        return min(gpu.pcie_width_max, gpu.pcie_width or gpu.pcie_width_max)
    return gpu.pcie_width


def _is_up(gpu: Gpu, width: int) -> bool:
    """Whether the width can be judged: under load, in P0, or when the maximum is no better."""
    return (
        gpu.performance_state == "P0"
        or (gpu.utilization_percent or 0) >= _BUSY_PERCENT
        or (gpu.pcie_width_max is not None and gpu.pcie_width_max <= width)
    )


def _is_slow_generation(gpu: Gpu) -> bool:
    now, most = gpu.pcie_generation, gpu.pcie_generation_max
    loaded = gpu.performance_state == "P0" or (gpu.utilization_percent or 0) >= _BUSY_PERCENT
    return loaded and now is not None and most is not None and now < most


def _message(gpus: list[Gpu], wanted: int | None) -> str:
    worst = min(gpus, key=lambda gpu: gpu.pcie_width or 0)
    expected = wanted or _known_width(worst)
    because = " (gpu_host.expected_pcie_width)" if wanted else ""
    return f"its PCIe link has {worst.pcie_width} lanes instead of {expected}{because}"


def _evidence(gpus: list[Gpu]) -> str:
    return of_each(gpus, _link)


def _link(gpu: Gpu) -> str:
    busy = "?" if gpu.utilization_percent is None else str(gpu.utilization_percent)
    return (
        f"x{gpu.pcie_width} of x{gpu.pcie_width_max}, generation {gpu.pcie_generation} of "
        f"{gpu.pcie_generation_max}, {gpu.performance_state or 'state unknown'}, {busy}% busy"
    )
