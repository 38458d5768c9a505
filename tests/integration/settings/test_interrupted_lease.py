"""Ctrl-C in a run of the real pyinfra gives the host's lease back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.settings.test_interrupted import (
    _check,
    _interrupt,
    _inventory,
    _started,
    _wait_for,
)

if TYPE_CHECKING:
    from tests.fakes.repository import Repository

PROGRAM = '#!/bin/sh\necho "$*" >> {calls}\necho "{{}}"\n'
DEPLOY = """
import time
from pathlib import Path

from pyinfra import host, state
from pyinfra.operations import python

from pyinfra_deploy.operations import lease


def hold():
    assert lease.acquire(state, host, llm_root={root!r}, generation_seen=0, lease_seen=None)
    Path("begun").touch()
    time.sleep(600)


python.call(name="hold", function=hold)
"""


def test_the_lease_is_given_back(repository: Repository) -> None:
    root, calls = repository.root / "llm", repository.root / "calls"
    program = root / "bin" / "fleet-host"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM.format(calls=calls))
    program.chmod(0o755)
    _inventory(repository, "ansible_connection: local")
    repository.write("deploy.py", DEPLOY.format(root=str(root)))
    with _started(repository, "-y", "inventories/prod.py", "deploy.py") as process:
        _wait_for((repository.root / "begun").exists, process)
        _check(_interrupt(repository, process))
    assert calls.read_text().splitlines() == ["lease acquire", "lease release"]
