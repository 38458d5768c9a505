"""New TLS keys and certificates, for clients and for other hosts: the runbook rotate-certificates
runs this, and holds the hosts' lock meanwhile.

    pyinfra inventories/prod.py pyinfra_deploy/deploys/rotate_certificate.py

Nginx goes on with the former ones until it has loaded the new ones and its probe has answered. The
gateway service looks for changed files by itself (gateway/llm_gateway/backend.py).
"""

from pyinfra import host

from pyinfra_deploy.deploys.artefacts import HostSigner, Signer
from pyinfra_deploy.operations import door_steps, gateway_steps
from pyinfra_deploy.planning.host_plan import HostPlan

settings = host.data.settings
if "gateway" in host.groups and settings.gateway.tls.source == "own_ca":
    gateway_steps.issue_certificate(
        name="Issue a certificate for a new key",
        settings=settings,
        sign=Signer(host.data.fleet, settings.gateway.server_name).sign,
        new_key=True,
    )
    gateway_steps.apply_nginx(name="Load it into Nginx", settings=settings, reload=True)
between = HostSigner(host.data.fleet)
if between.identity.role:
    door_steps.issue_host_certificate(
        name="Issue a certificate for other hosts",
        identity=between.identity,
        sign=between.sign,
        llm_root=settings.llm_root,
    )
if between.identity.role == "engine":
    reloads = HostPlan(
        host.name, frozenset(host.groups), settings, host_certificate="a new one is asked for"
    )
    door_steps.apply_door(
        name="Load it into the engine's door", plan=reloads, identity=between.identity
    )
