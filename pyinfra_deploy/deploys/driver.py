"""The NVIDIA driver, from the host's own apt sources, where gpu_driver is install."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra.api import deploy

from pyinfra_deploy.operations import driver_steps

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan


@deploy("Driver")
def driver(plan: HostPlan) -> None:
    """Hosts with nothing live get it side by side; the others one by one, each serving again before
    the next is drained, and after one failure the rest are left alone."""
    if plan.driver is None:
        return
    if plan.driver.live is None:
        driver_steps.install_driver(name="Install the NVIDIA driver", plan=plan)
    else:
        driver_steps.install_driver(
            name="Install the NVIDIA driver on hosts that serve, one by one",
            plan=plan,
            _serial=True,
        )
