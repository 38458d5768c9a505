"""Ask hosts one command of the host program each: `fleet rollout`, `lock`, `drain` and others run
this.

    pyinfra -y --data calls=/tmp/calls inventories/prod.py pyinfra_deploy/deploys/call_hosts.py

DIRECTORY/requests/HOST.json: {command, request, timeout_seconds}; the host's answer goes into
DIRECTORY/answers/HOST.json (operations/outside_call.py). Has no operation.
"""

import json
from pathlib import Path

from pyinfra import host

from pyinfra_deploy.deploys.session import unless_sudo_asks
from pyinfra_deploy.operations.outside_call import asked

directory, name = Path(host.data.calls), host.data.fleet["host"]
wanted = json.loads((directory / "requests" / f"{name}.json").read_text(encoding="utf-8"))
answer = unless_sudo_asks(
    host,
    lambda: asked(
        host.state,
        host,
        wanted["command"],
        wanted["request"],
        host.data.settings.llm_root,
        wanted["timeout_seconds"],
    ),
)
if answer:
    (directory / "answers" / f"{name}.json").write_text(json.dumps(answer), encoding="utf-8")
