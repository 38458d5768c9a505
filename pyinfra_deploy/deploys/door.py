"""Traffic between hosts: mutual TLS under the inventory's own CA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra import host
from pyinfra.api import deploy

from pyinfra_deploy.deploys.artefacts import HostSigner
from pyinfra_deploy.operations import door_steps

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan


@deploy("Between hosts")
def between_hosts(plan: HostPlan) -> None:
    """The certificate that this host shows to others, and on an engine's host that is no gateway
    the door through which the inventory's gateways come."""
    signer = HostSigner(host.data.fleet)
    if plan.host_certificate:
        door_steps.issue_host_certificate(
            name="Issue a certificate for other hosts",
            identity=signer.identity,
            sign=signer.sign,
            llm_root=plan.settings.llm_root,
        )
    if plan.on("engine door") and (plan.door or plan.host_certificate):
        door_steps.apply_door(name="Apply the engine's door", plan=plan, identity=signer.identity)
