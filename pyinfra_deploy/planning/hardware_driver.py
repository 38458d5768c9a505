"""What it means that nvidia-smi did not answer, and driver versions that do not agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.kernel_events import events_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.facts.hardware import DriverFailure, Hardware

_MISMATCH = (
    "NVIDIA's driver packages bring library and kernel module of one version, which must agree"
)


def driver_failure(hardware: Hardware) -> Iterator[Finding]:
    """The one refusal for a driver that does not answer."""
    failure = hardware.failure
    if failure is None:
        if _disagree(hardware):
            yield _mismatch(hardware, "")
        return
    match failure.kind:
        case "mismatch":
            yield _mismatch(hardware, failure.text)
        case "not-installed" | "no-driver" | "no-library":
            yield _not_there(hardware, failure)
        case "no-devices":
            yield _no_devices(hardware, failure)
        case "gpu-lost" | "unknown-error":
            yield _lost(hardware, failure)
        case "hang":
            yield Finding(
                "gpu.hang",
                "refuse",
                hardware.host,
                "NVIDIA driver",
                "nvidia-smi does not answer: the driver is stuck in the kernel, as a rule on a "
                "failed GPU. Nothing that uses a GPU can start, and what waits for it cannot be "
                "killed",
                "drain the host and reboot it (power cycle if it does not go down); then look at "
                "the Xid lines of journalctl -k -b -1",
                evidence=_seen(hardware, failure),
                source="nvidia-smi(1)",
            )
        case "truncated" | "unreadable":
            yield Finding(
                "gpu.unread",
                "refuse",
                hardware.host,
                "GPUs",
                "it is not known which GPUs this host has: what nvidia-smi said could not be read",
                "run nvidia-smi -q -x on the host, and collect the facts again",
                evidence=failure.text,
                source="nvidia-smi(1)",
            )


def _seen(hardware: Hardware, failure: DriverFailure) -> str:
    """The failure's line, and kernel lines that belong to it."""
    lines = [" ".join(failure.text.split())]
    for event in events_of(hardware):
        if event.code is None or event.code in (79, 119, 120, 143) or event.pci_address is None:
            lines.append(event.text)
    return "; ".join(lines[:3])


def _mismatch(hardware: Hardware, text: str) -> Finding:
    versions = [
        f"{what} {version}"
        for what, version in (
            ("loaded module", hardware.loaded_module_version),
            ("library", hardware.library_version),
            ("module on disk", hardware.installed_module_version),
        )
        if version
    ]
    exposed = [package.name for package in hardware.packages if package.upgradable_unattended]
    return Finding(
        "gpu.driver-mismatch",
        "refuse",
        hardware.host,
        "NVIDIA driver",
        "the driver's library was upgraded under the kernel module that is loaded: nothing new can "
        "use a GPU, and engines that still run will not survive a restart",
        "drain the host and reboot it (or stop all that uses a GPU and reload the module: rmmod "
        "nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia); then set gpu_driver: hold, "
        "so that unattended upgrades leave these packages alone",
        evidence="; ".join(
            [*([" ".join(text.split())] if text else []), *versions]
            + ([f"not held: {', '.join(exposed[:3])}"] if exposed else [])
        ),
        source=_MISMATCH,
    )


def _disagree(hardware: Hardware) -> bool:
    return (
        hardware.loaded_module_version is not None
        and hardware.library_version is not None
        and hardware.loaded_module_version != hardware.library_version
    )


def _not_there(hardware: Hardware, failure: DriverFailure) -> Finding:
    bound = sorted({gpu.kernel_driver for gpu in hardware.pci_gpus or () if gpu.kernel_driver})
    others = [name for name in bound if name != "nvidia"]
    installed = failure.kind != "not-installed"
    what = {
        "not-installed": "no NVIDIA driver is installed (there is no nvidia-smi)",
        "no-driver": "the NVIDIA kernel module is not loaded",
        "no-library": "the NVIDIA driver's library is not installed",
    }[failure.kind]
    if others:
        what += f"; the GPUs are bound to {', '.join(others)}"
    fix = (
        "load it: modprobe nvidia; if that fails the module was not built for kernel "
        f"{hardware.kernel or '(uname -r)'} (dkms status; install its headers) or Secure Boot "
        "refuses it (mokutil --sb-state)"
        if installed
        else "gpu_driver: install has the deploy install it and reboot; or do so yourself (your "
        "Ansible role; Debian nvidia-driver, Ubuntu nvidia-driver-NNN-server) and reboot"
    )
    return Finding(
        "gpu.no-driver",
        "refuse",
        hardware.host,
        "NVIDIA driver",
        what,
        fix,
        evidence=_seen(hardware, failure)
        + (f"; {len(hardware.pci_gpus)} GPUs on the PCI bus" if hardware.pci_gpus else ""),
        source="nvidia-smi(1)",
    )


def _no_devices(hardware: Hardware, failure: DriverFailure) -> Finding:
    on_bus = hardware.pci_gpus
    return Finding(
        "gpu.none",
        "refuse",
        hardware.host,
        "GPUs",
        "the driver is loaded and finds no GPU"
        + ("" if on_bus is None else f"; the PCI bus has {len(on_bus)}"),
        "look at dmesg | grep NVRM: a card that fails to start is named there; and at lspci -d "
        "10de: without a line there, it is power, slot or BIOS",
        evidence=_seen(hardware, failure),
        source="nvidia-smi(1)",
    )


def _lost(hardware: Hardware, failure: DriverFailure) -> Finding:
    where = f" at {failure.pci_address}" if failure.pci_address else ""
    return Finding(
        "gpu.lost",
        "refuse",
        hardware.host,
        f"GPU{where}",
        f"the GPU{where} has fallen off the bus or does not answer, and the driver lists none "
        "while it is so",
        "drain the host and power cycle it (a reboot may not be enough); if the card is lost "
        "again: slot, power cables, cooling, then the card",
        evidence=_seen(hardware, failure),
        source="nvidia-smi(1); Xid 79 of docs.nvidia.com/deploy/xid-errors",
    )


def driver_versions(hardware: Hardware) -> Iterator[Finding]:
    """A running driver that will be another one after the next boot."""
    loaded, on_disk = hardware.loaded_module_version, hardware.installed_module_version
    if loaded and on_disk and loaded != on_disk:
        yield Finding(
            "gpu.driver-changes-at-boot",
            "warn",
            hardware.host,
            "NVIDIA driver",
            f"driver {loaded} is loaded, and the next boot loads {on_disk}",
            "plan a reboot of the drained host, rather than be surprised by one",
            evidence=f"loaded module {loaded}; module on disk {on_disk}",
            source=_MISMATCH,
        )
