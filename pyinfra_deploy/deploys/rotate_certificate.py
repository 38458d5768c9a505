"""A new TLS key and certificate on gateways: the runbook rotate-certificates runs this.

    pyinfra inventories/prod.py pyinfra_deploy/deploys/rotate_certificate.py

Nginx goes on with the former ones until it has loaded the new ones and its probe has answered.
"""

from pyinfra import host

from pyinfra_deploy.deploys.artefacts import Signer
from pyinfra_deploy.operations import gateway_steps

settings = host.data.settings
if "gateway" in host.groups and settings.gateway.tls.source == "own_ca":
    gateway_steps.issue_certificate(
        name="Issue a certificate for a new key",
        settings=settings,
        sign=Signer(host.data.fleet, settings.gateway.server_name).sign,
        new_key=True,
    )
    gateway_steps.apply_nginx(name="Load it into Nginx", settings=settings, reload=True)
