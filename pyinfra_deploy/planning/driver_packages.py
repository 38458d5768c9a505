"""Which installed packages are the loaded driver."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyinfra_deploy.facts.hardware import Hardware


def driver_packages(hardware: Hardware) -> tuple[str, ...]:
    """The installed packages of the loaded driver's branch, by the version that they carry.

    linux-modules-nvidia-* carry the kernel's version and are left alone: a new kernel needs its
    own, and apt takes only one that fits the libraries that are held. cuda-compat-* carry a
    driver's version and are not the driver.
    """
    loaded = hardware.loaded_module_version or hardware.driver_version
    if loaded is None:
        return ()
    branch = re.escape(loaded.split(".")[0])
    return tuple(
        package.name
        for package in hardware.packages
        if re.match(rf"(?:\d+:)?{branch}\.\d", package.version)
        and not package.name.startswith("cuda-compat")
    )
