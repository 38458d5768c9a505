"""Take hosts back to releases that they have kept: `fleet rollback` runs this, as one step a group.

    pyinfra -y --data targets=/tmp/targets.json inventories/prod.py \
        pyinfra_deploy/deploys/roll_back.py

The file: {HOST: {kept, rejected, who, why, switch}} (operations/rollback_steps.py).
"""

import json
from functools import partial
from pathlib import Path

from pyinfra import host

from pyinfra_deploy.deploys.verify import verification_of
from pyinfra_deploy.operations import rollback_steps
from pyinfra_deploy.planning.gateway_config import service_text

settings, groups = host.data.settings, frozenset(host.groups)
gateway_text = partial(service_text, groups, settings, tuple(host.data.fleet.get("engines") or ()))
rollback_steps.roll_back(
    name="Roll back",
    settings=settings,
    target=json.loads(Path(host.data.targets).read_text())[host.data.fleet["host"]],
    verification=verification_of(settings, groups, gateway_text()),
    gateway_text=gateway_text,
)
