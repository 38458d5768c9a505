"""What is wrong with a host's GPUs and around them, from its hardware and its settings. Pure.

One cause, one refusal: a driver that does not answer hides all the rest, a card that fell off the
bus is not also "too few", errors of one card's memory are told once, with all that was seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.gpu_table import bare_name, index_ranges, named
from pyinfra_deploy.planning.hardware_driver import driver_failure, driver_versions
from pyinfra_deploy.planning.hardware_health import health_findings
from pyinfra_deploy.planning.hardware_host import host_findings
from pyinfra_deploy.planning.hardware_load import load_findings
from pyinfra_deploy.planning.kernel_events import events_of, xid_findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.facts.hardware import Gpu, Hardware
    from pyinfra_deploy.settings.schema import Settings


@dataclass(frozen=True)
class Demand:
    """What a plan asks of a host beyond its settings. model_bytes: all files of the model; None
    before its listing is known. model_on_host: it is there already, complete."""

    model_bytes: int | None = None
    model_on_host: bool = False


def hardware_findings(
    hardware: Hardware, settings: Settings, demand: Demand | None = None
) -> tuple[Finding, ...]:
    """Findings on one host. A host that computes on its CPU and expects no GPUs
    (gpu_host.expected_gpus) is not judged by its GPUs."""
    demand = demand or Demand()
    return tuple(_findings(hardware, settings, demand))


def uses_gpus(settings: Settings) -> bool:
    on_cuda = settings.runtime is not None and settings.runtime.device == "cuda"
    return on_cuda or settings.gpu_host.expected_gpus is not None


def wanted_gpus(settings: Settings) -> tuple[int, str]:
    """How many GPUs a host has to have, and the keys that say so."""
    args = settings.engine.args
    sizes = {
        name: args[name]
        for name in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
        if isinstance(args.get(name), int)
    }
    product = 1
    for size in sizes.values():
        product *= size
    expected = settings.gpu_host.expected_gpus
    if expected is not None and expected >= product:
        return expected, f"gpu_host.expected_gpus: {expected}"
    if not sizes:
        return 1, "one, as no parallel size is set"
    return product, ", ".join(f"engine.args.{name}: {size}" for name, size in sizes.items())


def _findings(hardware: Hardware, settings: Settings, demand: Demand) -> Iterator[Finding]:
    if uses_gpus(settings):
        yield from _gpus(hardware, settings)
    yield from host_findings(
        hardware, settings, demand.model_bytes, demand.model_on_host, uses_gpus(settings)
    )


def _gpus(hardware: Hardware, settings: Settings) -> Iterator[Finding]:
    roots = tuple(driver_failure(hardware))
    yield from roots
    if not roots:
        roots = tuple(_none_listed(hardware, settings))
        yield from roots
    if roots:
        # Kernel lines still help whoever looks, but the refusal is the one above.
        yield from xid_findings(hardware, explained=True)
        return
    yield from driver_versions(hardware)
    missing = tuple(_count(hardware, settings))
    yield from missing
    yield from _numbering(hardware)
    yield from _models(hardware, settings)
    yield from health_findings(hardware, settings)
    yield from load_findings(hardware, settings)
    some_missing = any(finding.severity == "refuse" for finding in missing)
    yield from xid_findings(hardware, some_missing=some_missing)


def _none_listed(hardware: Hardware, settings: Settings) -> Iterator[Finding]:
    """No GPU and no failure: either nothing was read, or nothing is there."""
    if hardware.gpus:
        return
    unread = [(name, why) for name, why in hardware.unread if name.startswith("nvidia-smi")]
    if unread:
        yield Finding(
            "gpu.unread",
            "refuse",
            hardware.host,
            "GPUs",
            "it is not known which GPUs this host has: what nvidia-smi said could not be read",
            "run nvidia-smi -q -x on the host, and collect the facts again",
            evidence="; ".join(f"{name}: {why}" for name, why in unread),
            source="nvidia-smi(1)",
        )
        return
    wanted, because = wanted_gpus(settings)
    on_bus = len(hardware.pci_gpus or ())
    yield Finding(
        "gpu.none",
        "refuse",
        hardware.host,
        "GPUs",
        f"the host has no GPU that the driver lists, and {wanted} are wanted"
        + (f"; the PCI bus has {on_bus}" if hardware.pci_gpus is not None else ""),
        "look at lspci -d 10de: on the host: without a line there, it is power, slot or BIOS; "
        "or take the host out of the group gpu",
        evidence=because,
        source="nvidia-smi(1)",
    )


def _count(hardware: Hardware, settings: Settings) -> Iterator[Finding]:
    wanted, because = wanted_gpus(settings)
    found = len(hardware.gpus)
    if found < wanted:
        yield _too_few(hardware, wanted, because)
    elif settings.gpu_host.expected_gpus is not None and found > wanted:
        yield Finding(
            "gpu.more-than-expected",
            "note",
            hardware.host,
            "GPUs",
            f"the host has {found} GPUs, more than the {wanted} of gpu_host.expected_gpus",
            "correct gpu_host.expected_gpus, so that a lost card is noticed",
            evidence=f"nvidia-smi lists {found}",
            source="group_vars",
        )


def _too_few(hardware: Hardware, wanted: int, because: str) -> Finding:
    found = len(hardware.gpus)
    seen = [f"nvidia-smi lists {found}"]
    listed = {gpu.pci_address for gpu in hardware.gpus}
    silent = [gpu for gpu in hardware.pci_gpus or () if gpu.address not in listed]
    seen += [
        f"{gpu.address} is on the PCI bus, bound to {gpu.kernel_driver or 'no driver'}"
        for gpu in silent
    ]
    fallen = [event for event in events_of(hardware) if event.code == 79]
    seen += [event.text for event in fallen[:2]]
    if fallen:
        fix = (
            "power cycle the host (a reboot may not be enough); if the card is lost again: slot, "
            "power cables, cooling, then the card"
        )
        what = "a GPU has fallen off the bus"
    elif silent:
        fix = (
            "look for the card's address in dmesg (RmInitAdapter failed: reboot, then replace it); "
            "a card bound to vfio-pci is reserved for virtual machines"
        )
        what = "a GPU is on the bus and the driver does not list it"
    else:
        fix = (
            "reboot and look at lspci -d 10de: a card that is missing there too has lost power or "
            "its slot; if there never were more, correct the setting"
        )
        what = "GPUs are missing"
    return Finding(
        "gpu.fallen-off" if fallen else "gpu.too-few",
        "refuse",
        hardware.host,
        "GPUs",
        f"{what}: {found} of the {wanted} that are wanted ({because})",
        fix,
        evidence="; ".join(seen),
        source="nvidia-smi(1); Xid 79 of docs.nvidia.com/deploy/xid-errors",
    )


def _numbering(hardware: Hardware) -> Iterator[Finding]:
    indices = [gpu.index for gpu in hardware.gpus]
    holes = sorted(set(range(max(indices) + 1)) - set(indices))
    twice = sorted({index for index in indices if indices.count(index) > 1})
    uuids = [gpu.uuid for gpu in hardware.gpus if gpu.uuid]
    if twice or len(set(uuids)) < len(uuids):
        yield Finding(
            "gpu.listed-twice",
            "warn",
            hardware.host,
            "GPUs",
            "a GPU is listed twice, so these facts are damaged or from two runs",
            "collect the facts again",
            evidence=f"numbers {index_ranges(indices)}, twice {twice}",
            source="nvidia-smi(1)",
        )
    if holes:
        yield Finding(
            "gpu.number-missing",
            "warn",
            hardware.host,
            "GPUs",
            f"nvidia-smi counts GPUs {index_ranges(indices)}, and {index_ranges(holes)} "
            "are not described",
            "run nvidia-smi -q -x on the host; a card that it counts and does not describe has "
            "failed, or the output was cut",
            evidence=f"{len(indices)} GPUs described",
            source="nvidia-smi(1)",
        )


def _models(hardware: Hardware, settings: Settings) -> Iterator[Finding]:
    by_name: dict[str, list[Gpu]] = {}
    for gpu in hardware.gpus:
        by_name.setdefault(bare_name(gpu.name), []).append(gpu)
    wanted = settings.gpu_host.expected_gpu_model
    if len(by_name) > 1:
        listed = "; ".join(f"{named(gpus)}: {name}" for name, gpus in by_name.items())
        yield Finding(
            "gpu.mixed-models",
            "refuse",
            hardware.host,
            "GPUs",
            "the GPUs of this host are of different models: one engine over them goes at the pace "
            "and with the memory of the smallest, or does not start",
            "use equal cards, or give the engine only equal ones (engine.gpus: [0, 1, ...]), with "
            "a parallel size to match, and accept this finding",
            evidence=listed + (f"; wanted: {wanted}" if wanted else ""),
            source="vLLM splits each layer evenly over its GPUs",
        )
    elif wanted is not None and bare_name(wanted) not in by_name:
        yield Finding(
            "gpu.wrong-model",
            "refuse",
            hardware.host,
            named(hardware.gpus),
            f"the GPUs are {hardware.gpus[0].name}, and gpu_host.expected_gpu_model is {wanted}",
            "correct the setting, or find out which host this is",
            evidence=f"nvidia-smi: {hardware.gpus[0].name}",
            source="group_vars",
        )
