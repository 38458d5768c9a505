"""Read each host's event log, or have it prove that its chain is whole: `fleet audit` runs this.

    pyinfra -y --data models_directory=/tmp/events --data events=verify inventories/prod.py \
        pyinfra_deploy/deploys/read_events.py

Has no operation: nothing on a host is changed.
"""

import json
from pathlib import Path

from pyinfra import host

from pyinfra_deploy.operations.program import ConnectionLost, HostRefused, call

name = host.data.fleet["host"]
if host.data.events == "verify":
    heads = Path(host.data.fleet["directory"]) / "audit.json"
    seen = json.loads(heads.read_text(encoding="utf-8")) if heads.exists() else {}
    command, request = "events verify", {"seen": seen.get("hosts", {}).get(name)}
else:
    request = {"lines": int(host.data.events_lines), "containing": host.data.get("containing")}
    command = "events tail"
try:
    answer = call(host.state, host, command, request, llm_root=host.data.settings.llm_root)
except HostRefused as refusal:
    answer = {"refused": refusal.lines()}
except ConnectionLost as error:
    answer = {"refused": [f"the connection was lost ({error})"]}
(Path(host.data.models_directory) / f"{name}.json").write_text(json.dumps(answer))
