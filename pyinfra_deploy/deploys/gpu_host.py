"""What every host of ours needs below the services: packages, users, directories, units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra.api import deploy

from pyinfra_deploy.operations import host_steps
from pyinfra_deploy.operations.packages import install_packages

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan


# apt-mark waits some minutes for dpkg's lock; the chassis' fans take one to prove themselves. Less
# than what the lease lasts.
CARE_SECONDS = 870


@deploy("Host")
def gpu_host(plan: HostPlan) -> None:
    """Packages, service users, directories, units, vm.max_map_count (raised only), and what the
    settings ask for fans and the driver."""
    root = plan.settings.llm_root
    packages = [name for name in plan.packages if name != "python3"]
    if packages:
        install_packages(name="Install packages", packages=packages)
    if plan.files or plan.remove or plan.base or plan.daemon_reload:
        host_steps.call_program(
            name="Write users, directories and units",
            step="host",
            command="host prepare",
            spec={
                "files": [
                    {
                        "path": file.path,
                        "content": file.content,
                        "mode": file.mode,
                        "owner": file.owner,
                        "group": file.group,
                    }
                    for file in plan.files
                ],
                "remove": list(plan.remove),
                "sysusers": "/etc/sysusers.d/llm-fleet.conf",
                "tmpfiles": "/etc/tmpfiles.d/llm-fleet.conf",
            },
            llm_root=root,
        )
    if plan.map_count is not None:
        host_steps.call_program(
            name="Raise vm.max_map_count",
            step="vm.max_map_count",
            command="kernel raise-map-count",
            spec={"minimum": plan.map_count},
            llm_root=root,
        )
    if plan.care.reasons():
        host_steps.call_program(
            name="Care for fans and driver",
            step="fans and driver",
            command="host care",
            spec=plan.care.request(),
            llm_root=root,
            timeout_seconds=CARE_SECONDS,
        )
