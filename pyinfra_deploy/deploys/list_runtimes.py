"""Ask each host what runtimes and releases it has: `fleet runtime list` runs this.

    pyinfra -y --data runtimes_directory=/tmp/runtimes inventories/prod.py \
        pyinfra_deploy/deploys/list_runtimes.py

Has no operation: nothing on a host is changed.
"""

import json
from pathlib import Path

from pyinfra import host

from pyinfra_deploy.operations.program import ConnectionLost, HostRefused, call

settings = host.data.settings
request = {
    "keep_releases": settings.engine.keep_releases,
    "keep_runtimes": settings.runtime.keep if settings.runtime else 1,
    "dry": True,
}
try:
    answer = call(host.state, host, "runtime list", {}, llm_root=settings.llm_root)
    answer["would_go"] = call(host.state, host, "prune", request, llm_root=settings.llm_root)
except HostRefused as error:
    answer = {"refused": error.lines()}
except ConnectionLost as error:
    answer = {"refused": [f"the connection was lost: {error}"]}
name = host.data.fleet["host"]
(Path(host.data.runtimes_directory) / f"{name}.json").write_text(json.dumps(answer))
