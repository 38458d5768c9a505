"""The gateway: TLS, keys, limits and streaming in front of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra import host
from pyinfra.api import deploy

from pyinfra_deploy.deploys.artefacts import Signer, keys_document
from pyinfra_deploy.operations import acme_steps, gateway_steps, host_steps

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan


@deploy("Gateway")
def gateway(plan: HostPlan) -> None:
    """The auth service, the keys' digests, the certificate, then Nginx, which is tested before
    it is reloaded and keeps its old configuration when the new one is no good."""
    root, fleet = plan.settings.llm_root, host.data.fleet
    assert plan.settings.gateway is not None
    if plan.gateway_environment is not None:
        host_steps.build_environment(
            name="Install the gateway service",
            environment=plan.gateway_environment,
            llm_root=root,
        )
    if plan.keys or plan.gateway_activate:
        gateway_steps.push_keys(
            name="Push the API keys' digests",
            document=lambda: keys_document(fleet),
            llm_root=root,
        )
    if not plan.gateway_leaves_full:
        _activate(plan)
    if plan.certificate:
        gateway_steps.issue_certificate(
            name="Issue the certificate",
            settings=plan.settings,
            sign=Signer(fleet, plan.settings.gateway.server_name).sign,
        )
    if plan.nginx or plan.certificate:
        gateway_steps.apply_nginx(
            name="Apply Nginx's configuration",
            settings=plan.settings,
            reload=bool(plan.certificate or plan.acme),
        )
    if plan.acme:
        # The authority asks a server that runs, with a certificate of ours the first time.
        acme_steps.ask_authority(name="Ask the authority for a certificate", plan=plan)
        gateway_steps.apply_nginx(
            name="Serve the authority's certificate", settings=plan.settings, reload=True
        )
    if plan.gateway_leaves_full:
        # Nginx goes to the engine by itself from now on: the service's last answers end in peace.
        _activate(plan)


def _activate(plan: HostPlan) -> None:
    if not plan.gateway_activate or plan.gateway_at_go_live:
        return
    gateway_steps.activate_service(name="Bring the gateway service up to date", plan=plan)
