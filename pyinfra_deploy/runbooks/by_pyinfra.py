"""A runbook on the hosts that pyinfra has been limited to, one after the other.

    pyinfra inventories/prod.py pyinfra_deploy/runbooks/by_pyinfra.py --limit gpu07 \
        --data runbook=take-out --data why="fan 3"

With --data dry=yes only its first checks, and what it would do. Its options, as one text:
--data set="gpus=0 cut=yes".
"""

import shlex
import subprocess
import sys
from typing import Any

from pyinfra import host
from pyinfra.operations import python

RUNBOOK: str = host.data.runbook


def procedure(state: Any, host: Any) -> bool:
    """In a process of its own: it connects to the host by itself, and may run pyinfra again."""
    del state  # pyinfra takes an answer of False for a failure only from (state, host)
    fleet, given = host.data.fleet, shlex.split(str(host.data.get("set") or ""))
    line = [
        sys.executable, "-m", "pyinfra_deploy.cli", "runbook", "run", fleet["name"], RUNBOOK,
        fleet["host"], "--yes", "--why", str(host.data.get("why") or ""),
        *(word for one in given for word in ("--set", one)),
        *(["--dry"] if host.data.get("dry") else []),
    ]  # fmt: skip
    done = subprocess.run(
        line, cwd=fleet["root"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    for text in done.stdout.splitlines():
        host.log(text)
    return done.returncode == 0


python.call(name=f"Runbook {RUNBOOK}", function=procedure, _serial=True)
