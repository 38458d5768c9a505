"""Ask each host what models it has: `fleet model list` and `fleet model status` run this.

    pyinfra -y --data models_directory=/tmp/models inventories/prod.py \
        pyinfra_deploy/deploys/list_models.py

Has no operation: nothing on a host is changed.
"""

import json
from pathlib import Path

from pyinfra import host

from pyinfra_deploy.operations.model_source import locked_model
from pyinfra_deploy.operations.program import ConnectionLost, HostRefused, call
from pyinfra_deploy.planning import wanted

settings = host.data.settings
try:
    answer = call(host.state, host, "model list", {}, llm_root=settings.llm_root)
    if settings.model is not None:
        locked = locked_model(settings.model, Path(host.data.fleet["root"]))
        job = {
            "kind": "pull",
            "id": wanted.pull_job_id(wanted.pull_job(settings, "", locked.lock)),
        }
        try:
            answer["job"] = call(host.state, host, "job status", job, llm_root=settings.llm_root)
        except HostRefused as refusal:
            answer["job"] = {"state": "none", "why": refusal.what}
except HostRefused as refusal:
    answer = {"refused": refusal.lines()}
    if refusal.what == "fleet-host: bad usage":
        answer = {"refused": ["its host program is older than this command: deploy first"]}
except ConnectionLost as error:
    answer = {"refused": [f"the connection was lost: {error}"]}
name = host.data.fleet["host"]
(Path(host.data.models_directory) / f"{name}.json").write_text(json.dumps(answer))
