"""The driver's packages: what could replace them, and what keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.planning.driver_packages import driver_packages
from pyinfra_deploy.planning.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.facts.hardware import Hardware
    from pyinfra_deploy.settings.schema import Settings


def package_findings(hardware: Hardware, settings: Settings) -> Iterator[Finding]:
    yield from _exposed(hardware, settings)
    if hardware.gpus and settings.gpu_driver != "check" and not driver_packages(hardware):
        yield Finding(
            "driver.nothing-to-hold",
            "note",
            hardware.host,
            "NVIDIA packages",
            "no installed package belongs to the loaded driver, so there is nothing to hold: it "
            "was installed another way (NVIDIA's .run file), or the packages could not be read",
            "nothing; upgrades of the distribution do not touch such a driver, but a new kernel "
            "may leave it behind",
            evidence=f"loaded {hardware.loaded_module_version or hardware.driver_version}; "
            f"{len(hardware.packages)} NVIDIA packages",
            source="dpkg-query(1)",
        )


def _exposed(hardware: Hardware, settings: Settings) -> Iterator[Finding]:
    exposed = [
        package
        for package in hardware.packages
        if package.upgradable_unattended and not package.held
    ]
    if not exposed:
        return
    will_hold = settings.gpu_driver != "check"
    ours = set(driver_packages(hardware)) if will_hold else set()
    # Of other branches, or tools with versions of their own: nothing of ours holds them.
    if will_hold:
        exposed = [package for package in exposed if package.name in ours]
        if not exposed:
            return
    yield Finding(
        "gpu.packages-not-held",
        "note" if will_hold else "warn",
        hardware.host,
        "NVIDIA packages",
        "unattended upgrades may replace the driver's library under the loaded kernel module; "
        "then nothing new can use a GPU until a reboot"
        + ("; the deploy will hold them" if will_hold else ""),
        "nothing: gpu_driver is " + settings.gpu_driver
        if will_hold
        else "set gpu_driver: hold, or run apt-mark hold on them",
        evidence=", ".join(f"{package.name} {package.version}" for package in exposed[:6])
        + (f" and {len(exposed) - 6} more" if len(exposed) > 6 else ""),
        source="apt-mark(8); unattended-upgrades",
    )
