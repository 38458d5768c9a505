"""Ask each host for the arguments of its vLLMs: `fleet runtime flags` runs this.

    pyinfra -y --data flags_directory=/tmp/flags inventories/prod.py \
        pyinfra_deploy/deploys/list_flags.py

Has no operation: nothing on a host is changed.
"""

import json
from pathlib import Path

from pyinfra import host

from pyinfra_deploy.operations.program import ConnectionLost, HostRefused, call

path = Path(host.data.flags_directory) / f"{host.data.fleet['host']}.json"
try:
    answer = call(
        host.state,
        host,
        "runtime flags",
        {"help": bool(host.data.get("flags_help"))},
        llm_root=host.data.settings.llm_root,
    )
except HostRefused as refusal:
    answer = {"refused": refusal.lines()}
except ConnectionLost as error:
    answer = {"refused": [f"the connection was lost ({error})"]}
path.write_text(json.dumps(answer), encoding="utf-8")
