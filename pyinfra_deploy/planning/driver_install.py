"""gpu_driver: install: whether this run installs the NVIDIA driver, with what, and what forbids it.

A driver changes what can be known of a host, so a run that installs one does nothing else there,
and the next one plans from the new facts. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.hardware_findings import uses_gpus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyinfra_deploy.facts.hardware import Hardware
    from pyinfra_deploy.settings.schema import Settings

UNIT = "llm-driver@.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
# Each distribution's own (wiki.debian.org/NvidiaGraphicsDrivers; Ubuntu Server documentation,
# NVIDIA drivers installation). Only for hosts without a driver: a working one is left alone.
DEFAULT_PACKAGES = {
    "debian": ("linux-headers-amd64", "nvidia-driver", "nvidia-smi", "nvidia-persistenced"),
    "ubuntu": ("nvidia-driver-580-server",),
}
WHERE_FROM = {
    "debian": "add the component non-free to the host's Debian sources, or NVIDIA's own repository "
    "(docs/driver.md), run apt-get update there",
    "ubuntu": "switch the component restricted on in the host's sources, or add NVIDIA's own "
    "repository (docs/driver.md), run apt-get update there",
}
# What is said of a driver that is about to be replaced, or of one that is not there yet.
ABOUT_THE_OLD_DRIVER = frozenset(
    {
        "gpu.no-driver",
        "gpu.driver-mismatch",
        "gpu.driver-changes-at-boot",
        "gpu.packages-not-held",
        "compat.driver-too-old",
        "compat.driver-limited",
        "compat.driver-unknown",
        "compat.forward-compatibility",
    }
)
_ABSENT = ("not-installed", "no-library")
_REPAIRABLE = (*_ABSENT, "no-driver", "mismatch")
# Signed by Ubuntu itself, so that Secure Boot takes them.
_SIGNED = "linux-modules-nvidia-"
_DRIVER_VERSION = re.compile(r"(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class DriverStep:
    """What a run installs instead of everything else. packages: what the host is to have; missing:
    what is not there yet; version: the driver that apt would install, where its name tells; live:
    (release, its served model) of the engine that is drained for it and has to serve again."""

    packages: tuple[str, ...]
    missing: tuple[str, ...]
    version: str | None = None
    live: tuple[str, str] | None = None

    def reason(self) -> str:
        """What the run will do, after "will"."""
        if not self.missing:
            return "reboot for the driver that is installed and not loaded; then run again"
        version = f" (driver {self.version})" if self.version else ""
        return (
            f"install {', '.join(self.missing)}{version}, hold them, reboot if another driver is "
            "loaded; then run again for the rest"
        )

    def with_live(self, engine: Mapping[str, Any], served_model_name: str) -> DriverStep:
        """engine: its section of the snapshot. served_model_name: where its release names none."""
        current = engine.get("current")
        release = (engine.get("releases") or {}).get(current)
        named = release.get("served_model_name") if isinstance(release, dict) else None
        live = (str(current), str(named or served_model_name))
        return replace(self, live=live) if current else self


def packages_to_ask_for(settings: Settings) -> tuple[str, ...]:
    """Of which the snapshot asks apt; all defaults, as the distribution is not known before."""
    if settings.gpu_driver != "install" or not uses_gpus(settings):
        return ()
    every = (name for names in DEFAULT_PACKAGES.values() for name in names)
    return settings.gpu_driver_packages or tuple(every)


def plan_driver(
    settings: Settings, hardware: Hardware, sources: Mapping[str, Any] | None
) -> tuple[DriverStep | None, tuple[Finding, ...]]:
    """(what this run installs, what is to be said of it): a refusal comes without a step. (None,
    ()) where nothing is to be installed.

    sources: the snapshot's section `driver`.
    """
    if settings.gpu_driver != "install" or not uses_gpus(settings) or sources is None:
        return None, ()
    kind = hardware.failure.kind if hardware.failure else None
    reserved = any(gpu.kernel_driver == "vfio-pci" for gpu in hardware.pci_gpus or ())
    if reserved or (kind is not None and kind not in _REPAIRABLE):
        return None, ()  # a new driver does not mend it
    names = settings.gpu_driver_packages
    if not names and (kind in _ABSENT or (kind == "no-driver" and not _module(hardware))):
        names = DEFAULT_PACKAGES.get(hardware.os_id or "", ())
        if not names:
            return None, (_no_default(hardware),)
    if isinstance(sources.get("error"), str):
        return None, (_unavailable(hardware, names, str(sources["error"])),) if names else ()
    told = sources.get("packages") or {}
    seen = {name: told.get(name) or {} for name in names}
    missing = tuple(name for name in names if not seen[name].get("installed"))
    if not missing and not _reboot_is_owed(hardware):
        return None, ()
    refusals = tuple(_refusals(hardware, missing, seen, sources))
    if refusals:
        return None, refusals
    step = DriverStep(names, missing, _version(missing, seen))
    return step, (_will_install(hardware, step),)


def _module(hardware: Hardware) -> str | None:
    return hardware.installed_module_version


def _reboot_is_owed(hardware: Hardware) -> bool:
    on_disk = _module(hardware)
    return on_disk is not None and on_disk != hardware.loaded_module_version


def _version(missing: tuple[str, ...], seen: Mapping[str, Mapping[str, Any]]) -> str | None:
    for name in missing:
        match = _DRIVER_VERSION.match(str(seen[name].get("candidate")))
        if match:
            return match.group(1)
    return None


def _refusals(
    hardware: Hardware,
    missing: tuple[str, ...],
    seen: Mapping[str, Mapping[str, Any]],
    sources: Mapping[str, Any],
) -> Iterator[Finding]:
    """At most one: what is to be mended first."""
    absent = tuple(name for name in missing if not seen[name].get("candidate"))
    if absent:
        yield _unavailable(hardware, absent, "apt-cache policy has no candidate")
        return
    unsigned = [name for name in missing if not name.startswith(_SIGNED)]
    if len(unsigned) < len(missing) or not missing:
        return
    if sources.get("secure_boot") is True and sources.get("module_key") is not True:
        yield Finding(
            "driver.secure-boot",
            "refuse",
            hardware.host,
            "Secure Boot",
            "Secure Boot is on, and the firmware trusts no key of this host: the kernel would "
            "refuse the module that is built here, after the reboot",
            "enrol the host's key first: mokutil --import /var/lib/dkms/mok.pub (after "
            "apt-get install dkms mokutil), reboot, confirm it at the console; or name signed "
            "packages (Ubuntu: linux-modules-nvidia-580-server-generic) in gpu_driver_packages; "
            "or switch Secure Boot off in the firmware",
            evidence=f"SecureBoot is 1; {', '.join(missing)}",
            source="mokutil(1); wiki.debian.org/SecureBoot",
        )


def _unavailable(hardware: Hardware, names: tuple[str, ...], evidence: str) -> Finding:
    where = WHERE_FROM.get(hardware.os_id or "", "add a source that has them to the host")
    return Finding(
        "driver.not-available",
        "refuse",
        hardware.host,
        "gpu_driver_packages",
        f"gpu_driver is install, and the host's apt sources have no {', '.join(names)}",
        f"{where}, and run again; or name others in gpu_driver_packages. The deploy adds no "
        "repository",
        evidence=evidence,
        source="apt-cache(8)",
    )


def _no_default(hardware: Hardware) -> Finding:
    return Finding(
        "driver.not-available",
        "refuse",
        hardware.host,
        "gpu_driver_packages",
        "gpu_driver is install, and it is not known which packages are the driver on this "
        "distribution",
        "name them in gpu_driver_packages",
        evidence=f"ID={hardware.os_id}",
        source="docs/driver.md",
    )


def _will_install(hardware: Hardware, step: DriverStep) -> Finding:
    gpus = hardware.pci_gpus
    return Finding(
        "driver.will-install",
        "warn",
        hardware.host,
        "gpu_driver",
        f"this run will {step.reason()}. An engine that serves is drained and stopped for it",
        "nothing; or set gpu_driver: hold to leave the driver as it is",
        evidence=f"wanted {', '.join(step.packages) or 'what is installed'}; loaded "
        f"{hardware.loaded_module_version or 'none'}, on the disk {_module(hardware) or 'none'}"
        + ("" if gpus is None else f"; {len(gpus)} NVIDIA GPUs on the PCI bus"),
        source="docs/driver.md",
    )


def with_new_driver(hardware: Hardware, step: DriverStep) -> Hardware:
    """The host as far as it can be judged by the driver's version alone."""
    return replace(
        hardware,
        driver_version=step.version,
        loaded_module_version=step.version,
        cuda_version=None,
        failure=None,
    )
