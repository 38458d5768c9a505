"""The state of each GPU that the driver lists: memory errors, heat, power, PCIe, modes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.gpu_table import model_row, named, of_each, which
from pyinfra_deploy.planning.hardware_heat import (
    clock_findings,
    heat_findings,
    power_findings,
)
from pyinfra_deploy.planning.hardware_pcie import pcie_findings
from pyinfra_deploy.planning.kernel_events import events_on
from pyinfra_deploy.planning.runtime_facts import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.facts.hardware import Gpu, Hardware
    from pyinfra_deploy.planning.tables.rows import GpuModel
    from pyinfra_deploy.settings.schema import Settings

_ECC = (
    "docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt; docs.nvidia.com/deploy/dynamic-page-retirement"
)
_REASONS = "nvidia-smi(1), clocks event reasons; nvml.h"
# Degrees below the slowdown threshold from which on a summer's day, or a dead fan, is one too many.
_NEAR_SLOWDOWN_C = 5
# Two known totals of one card (ECC on and off) differ by 6%; drivers move a total by less than 1%.
_MEMORY_TOLERANCE = 0.03


def health_findings(hardware: Hardware, settings: Settings) -> Iterator[Finding]:
    yield from _modes(hardware)
    yield from _memory(hardware)
    yield from heat_findings(hardware)
    yield from power_findings(hardware)
    yield from clock_findings(hardware)
    yield from pcie_findings(hardware, settings)
    yield from _comfort(hardware)
    yield from _names(hardware)


def _modes(hardware: Hardware) -> Iterator[Finding]:
    split = which(hardware, lambda gpu: gpu.mig_enabled is True)
    if split:
        yield Finding(
            "gpu.mig-enabled",
            "refuse",
            hardware.host,
            named(split),
            "MIG is on: the GPU is split into instances, each with a part of its memory, and they "
            "cannot work together on one model",
            f"with nothing running there: nvidia-smi -i {split[0].index} -mig 0 (each GPU), then "
            "reset the GPU or reboot",
            evidence=of_each(split, lambda _: "MIG mode enabled"),
            source="NVIDIA's MIG user guide",
        )
    virtual = which(hardware, lambda gpu: (gpu.virtualization or "none").lower() == "vgpu")
    if virtual:
        yield Finding(
            "gpu.virtual",
            "warn",
            hardware.host,
            named(virtual),
            "this is a virtual GPU: it shares a card with others, and needs a licence to run at "
            "full speed",
            "use hosts that own their GPUs, or ask whoever runs the hypervisor",
            evidence=of_each(virtual, lambda gpu: f"virtualization mode {gpu.virtualization}"),
            source="NVIDIA's vGPU user guide",
        )


def _memory_trouble(gpu: Gpu) -> tuple[str, str, str] | None:
    """(finding, what is so, what to do) for the worst that is known of a card's memory."""
    reset = "drain the host and reset the GPU (nvidia-smi -r) or reboot"
    if gpu.remapped_rows_failed:
        return (
            "gpu.row-remap-failed",
            "a row of its memory is bad and could not be replaced by a spare one",
            "replace the card; a reset does not help",
        )
    if gpu.remapped_rows_pending:
        return (
            "gpu.row-remap-pending",
            "a bad row of its memory was found and is replaced at the next reset, not before",
            reset,
        )
    if gpu.retired_pages_pending:
        return (
            "gpu.page-retirement-pending",
            "a bad page of its memory was found and is retired at the next reset, not before",
            reset,
        )
    if gpu.ecc_uncorrected_volatile:
        return (
            "gpu.ecc-uncorrected",
            "its memory had errors that could not be corrected, since the driver was loaded: "
            "answers may have been wrong, engines crash",
            reset + "; if the errors come back replace the card",
        )
    return None


def _memory(hardware: Hardware) -> Iterator[Finding]:
    """One refusal a card at most, with everything that was seen of its memory."""
    by_kind: dict[tuple[str, str, str], list[Gpu]] = {}
    for gpu in hardware.gpus:
        trouble = _memory_trouble(gpu)
        if trouble is not None:
            by_kind.setdefault(trouble, []).append(gpu)
    for (identifier, message, fix), gpus in by_kind.items():
        evidence = of_each(gpus, lambda gpu: _memory_evidence(hardware, gpu))
        yield Finding(
            identifier, "refuse", hardware.host, named(gpus), message, fix, evidence, _ECC
        )
    old = which(
        hardware, lambda gpu: bool(gpu.ecc_uncorrected_aggregate) and _memory_trouble(gpu) is None
    )
    if old:
        yield Finding(
            "gpu.ecc-history",
            "note",
            hardware.host,
            named(old),
            "its memory had errors that could not be corrected, before the driver was loaded last",
            "nothing now; if the count grows, replace the card",
            evidence=of_each(old, lambda gpu: f"aggregate {gpu.ecc_uncorrected_aggregate}"),
            source=_ECC,
        )
    off = which(hardware, lambda gpu: gpu.ecc_enabled is False)
    if off:
        yield Finding(
            "gpu.ecc-off",
            "note",
            hardware.host,
            named(off),
            "ECC is off: there is a little more memory, and an error in it is not noticed",
            f"nvidia-smi -i {off[0].index} -e 1 (each GPU) and a reboot, unless that is meant",
            evidence=of_each(off, lambda _: "ECC mode disabled"),
            source="nvidia-smi(1)",
        )


def _memory_evidence(hardware: Hardware, gpu: Gpu) -> str:
    seen = [
        f"{what} {value}"
        for what, value in (
            ("uncorrected since load", gpu.ecc_uncorrected_volatile),
            ("uncorrected in all", gpu.ecc_uncorrected_aggregate),
        )
        if value
    ]
    seen += [
        what
        for what, is_so in (
            ("row remapping failed", gpu.remapped_rows_failed),
            ("row remapping pending", gpu.remapped_rows_pending),
            ("page retirement pending", gpu.retired_pages_pending),
        )
        if is_so
    ]
    return ", ".join([*seen, *(event.text for event in events_on(hardware, gpu, "memory")[:1])])


def _comfort(hardware: Hardware) -> Iterator[Finding]:
    off = which(hardware, lambda gpu: gpu.persistence_enabled is False)
    if off:
        yield Finding(
            "gpu.persistence-off",
            "note" if hardware.persistenced_installed else "warn",
            hardware.host,
            named(off),
            "persistence mode is off: the driver lets go of an idle GPU and takes seconds to start "
            "it again, and settings such as the power limit are lost each time"
            + ("; the deploy switches it on" if hardware.persistenced_installed else ""),
            "nothing"
            if hardware.persistenced_installed
            else "install nvidia-persistenced (Debian: the package of that name; Ubuntu: "
            "nvidia-compute-utils-NNN-server): the deploy then runs it as a unit; "
            "nvidia-smi -pm 1 does not outlive a reboot",
            evidence=of_each(off, lambda _: "persistence mode disabled")
            + (
                "; there is no /usr/bin/nvidia-persistenced"
                if hardware.persistenced_installed is False
                else ""
            ),
            source="nvidia-smi(1); NVIDIA's driver persistence page",
        )
    shown = which(hardware, lambda gpu: gpu.display_active is True)
    if shown:
        yield Finding(
            "gpu.display-active",
            "note",
            hardware.host,
            named(shown),
            "a display runs on this GPU, and takes some of its memory",
            "boot without a desktop: systemctl set-default multi-user.target",
            evidence=of_each(shown, lambda _: "display active"),
            source="nvidia-smi(1)",
        )
    asked = which(hardware, lambda gpu: (gpu.recovery_action or "none").lower() != "none")
    if asked:
        yield Finding(
            "gpu.recovery-asked",
            "warn",
            hardware.host,
            named(asked),
            f"the driver asks for: {asked[0].recovery_action}",
            "drain the host and do it",
            evidence=of_each(asked, lambda gpu: f"recovery action {gpu.recovery_action}"),
            source="nvidia-smi(1), GPU recovery action; Xid 154",
        )


def _names(hardware: Hardware) -> Iterator[Finding]:
    """Product names that say something else than what the card is."""
    for kind in dict.fromkeys(gpu.name for gpu in hardware.gpus):
        gpus = [gpu for gpu in hardware.gpus if gpu.name == kind]
        row = model_row(gpus[0])
        if row is None:
            continue
        unlike = [gpu for gpu in gpus if not _is_as_known(gpu, row)]
        if not unlike and row.lies is None:
            continue
        shown = unlike or gpus
        said = row.lies or (row.rebuilt if unlike else None)
        yield Finding(
            "gpu.name-misleads",
            "warn",
            hardware.host,
            named(shown),
            (
                f"it calls itself {kind}"
                + (", and is not what is known under that name" if unlike else "")
            )
            + (f": {said}" if said else ""),
            "plan with what it reports, not with the name; ask the seller what it is",
            evidence=of_each(shown, _figures)
            + f"; known: {row.memory_mib or 'unknown'} MiB, {dotted(row.capability)}",
            source=row.source,
        )


def _figures(gpu: Gpu) -> str:
    capability = dotted(gpu.compute_capability) if gpu.compute_capability else "not read"
    return f"{gpu.memory_total_mib} MiB, compute capability {capability}"


def _is_as_known(gpu: Gpu, row: GpuModel) -> bool:
    """Whether memory and compute capability are the row's, as far as both are known."""
    if gpu.compute_capability not in (None, row.capability):
        return False
    totals = [total for total in (row.memory_mib, row.memory_mib_ecc_off) if total is not None]
    if not totals or gpu.memory_total_mib is None:
        return True
    return any(abs(gpu.memory_total_mib - one) <= _MEMORY_TOLERANCE * one for one in totals)
