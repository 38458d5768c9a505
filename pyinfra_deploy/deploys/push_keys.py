"""Bring the inventory's API keys to its gateways: `fleet keys` runs this after each change.

    pyinfra inventories/prod.py pyinfra_deploy/deploys/push_keys.py

Takes no lease: the host itself refuses a serial that is older than its own, and a revocation must
not wait for a deploy that is under way.
"""

from pyinfra import host

from pyinfra_deploy.deploys.artefacts import keys_document
from pyinfra_deploy.operations import gateway_steps

if "gateway" in host.groups:
    gateway_steps.push_keys(
        name="Push the API keys' digests",
        document=lambda: keys_document(host.data.fleet),
        llm_root=host.data.settings.llm_root,
    )
