"""Read the raw outputs of each host into a directory: `fleet facts collect` runs this.

    pyinfra -y --data facts_directory=/tmp/facts inventories/prod.py \
        pyinfra_deploy/deploys/collect_facts.py

Has no operation: nothing on a host is changed.
"""

import json
from pathlib import Path

from pyinfra import host, logger

from pyinfra_deploy.deploys.artefacts import artefacts_for
from pyinfra_deploy.deploys.session import read_host, unless_sudo_asks
from pyinfra_deploy.facts import raw
from pyinfra_deploy.facts.collected import TIMEOUT_SECONDS, CollectedOutputs, write_directory
from pyinfra_deploy.operations import host_steps

outputs = unless_sudo_asks(
    host,
    lambda: host.get_fact(
        CollectedOutputs,
        mask_uuids=bool(host.data.get("facts_mask_uuids")),
        _timeout=TIMEOUT_SECONDS,
    ),
)
if outputs:
    # What of ours is on the host, for `fleet plan` to tell what a deploy would change.
    settings = host.data.settings
    seen = read_host(
        host, settings, frozenset(host.groups), artefacts_for(host.data.fleet, settings)
    )
    outputs[raw.SNAPSHOT] = raw.RawOutput(json.dumps(seen))
    try:
        write_directory(Path(host.data.facts_directory) / host.data.fleet["host"], outputs)
    except OSError as error:
        # Raised on, it would end the run of all hosts.
        host.log_styled(f"cannot write: {error}", fg="red", log_func=logger.error)
        host_steps.drop(host)
