"""A fleet of this machine alone, for rollouts with the real pyinfra and the real host program.

Its deploy is the test's: what a group's turn does is read from a file beside it. systemd is not
there; of an engine the host says what its files say.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.repository import GOOD, HOSTS, LOCK, Repository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
# Only of a test that hangs: a busy machine is no failure.
PATIENCE_SECONDS = 900
DRIVER = """
import json, sys
from pathlib import Path
from pyinfra_deploy.operations.run import own_run
from pyinfra_deploy.rollout import record
from pyinfra_deploy.rollout.console import Console
from pyinfra_deploy.rollout.drive import drive
from pyinfra_deploy.rollout.policy import Course, Options
from pyinfra_deploy.rollout.pyinfra_hosts import PyinfraHosts
from pyinfra_deploy.settings.fleet import load_fleet

fleet = load_fleet("prod", Path.cwd())
options = Options()
console = Console(
    record.begin(fleet.root, "prod", "ro1", kind="rollout", owner="ada", options=options,
                 groups=[["gpu01"]], hosts={"gpu01": {"from": "r1", "to": "r2"}}),
    Course(("gpu01",), options),
)
hosts = PyinfraHosts(fleet, "ro1", own_run(), {"gpu01": "r2"}, Path("turn.py"), {}, console.line)
document = {"id": "ro1", "kind": "rollout", "hosts": {"gpu01": "r2"},
            "options": {"canary": 1, "batch": "25%", "pause": False, "max_failures": 0}}
sys.exit(drive(hosts, console, document, {"gpu01": int(sys.argv[1]) if sys.argv[1:] else None}))
"""
# What a group's turn does, by the file `behave`: tell JSON, sleep, fail, or say nothing.
TURN = """
import json, time
from pathlib import Path
from pyinfra import host
from pyinfra.operations import python
from pyinfra_deploy.operations.go_live import tell

behave = json.loads(Path("behave").read_text())


def give_the_host_back(state, host):
    Path("begun").touch()
    if behave.get("tell"):
        tell(host, **behave["tell"])
    time.sleep(behave.get("sleep", 0))
    for line in behave.get("say", []):
        host.log(line)
    return not behave.get("fail")


python.call(name="Give the host back", function=give_the_host_back)
"""


@dataclass
class RolloutHost:
    repository: Repository
    llm_root: Path

    @property
    def root(self) -> Path:
        return self.repository.root

    def behave(self, **how: Any) -> None:
        (self.root / "begun").unlink(missing_ok=True)
        (self.root / "behave").write_text(json.dumps(how))

    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.root / 'bin'}:/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY),
            "HOME": str(self.root), "FLEET_RUN_ROOT": str(self.root / "run"),
        }  # fmt: skip

    def start(self, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments],
            cwd=self.root,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def drive(self, *arguments: str) -> tuple[int, str]:
        with self.start(*arguments) as process:
            printed, _ = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, printed

    def fleet(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pyinfra_deploy.cli", *words],
            cwd=self.root, env=self.environment(), capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip

    def state(self, name: str) -> Any:
        path = self.llm_root / "state" / name
        return json.loads(path.read_text()) if path.exists() else None

    def events(self) -> list[dict[str, Any]]:
        path = self.llm_root / "state/events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def report(self) -> dict[str, Any]:
        path = self.root / ".fleet/rollouts/prod/ro1.json"
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def engine(self, phase: str, run: str, started: str | None, *, active: bool = True) -> None:
        """What the host is to say of its engine."""
        home = self.llm_root / "engines/main"
        home.mkdir(parents=True, exist_ok=True)
        document = {"phase": phase, "run": run, "cause": "it died"}
        (home / "golive.json").write_text(json.dumps(document))
        (home / "current").unlink(missing_ok=True)
        (home / "current").symlink_to(f"releases/{started or 'r1'}")
        directory = self.root / "run/llm-engine-main"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "started.json").write_text(json.dumps({"release": started}))
        (self.root / "active").write_text("active" if active else "failed")

    def begun(self, process: subprocess.Popen[str]) -> None:
        wait_for((self.root / "begun").exists, process)


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert process is None or process.poll() is None, "it ended too soon"
        assert time.monotonic() < end, "what the test waits for did not happen"
        time.sleep(0.05)


def ended(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    process.send_signal(number)
    printed, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, printed


@pytest.fixture
def rollout_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RolloutHost]:
    """llm_root must not be below /tmp, by the settings' own rule."""
    if os.geteuid() != 0:
        pytest.skip("needs a directory below /srv: run as root")
    place = Path(tempfile.mkdtemp(prefix="fleet-test-", dir="/srv"))
    repository = Repository(tmp_path)
    repository.write("ansible.cfg", "[defaults]\nplaybook_dir = .\n")
    repository.write("locks/one.txt", LOCK)
    local = HOSTS.replace("vars: {", "vars: {ansible_connection: local, ").replace("[01:02]", "01")
    repository.write("inventories/prod/hosts.yml", local)
    repository.write(
        "inventories/prod.py",
        "from pyinfra_deploy.settings import pyinfra_inventory\n"
        "globals().update(pyinfra_inventory(__file__))\n",
    )
    repository.write("group_vars/prod.yml", f"llm_root: {place}\n{GOOD}")
    repository.write("turn.py", TURN)
    systemctl = repository.write(
        "bin/systemctl",
        "#!/bin/sh\n"
        f'case "$*" in *llm-golive@*) s=$(cat {tmp_path}/golive 2>/dev/null || echo inactive) ;;\n'
        f"*) s=$(cat {tmp_path}/active 2>/dev/null || echo active) ;; esac\n"
        'printf "LoadState=loaded\\nActiveState=%s\\n" "$s"\n'
        "for key in LoadError SubState UnitFileState Result MainPID NRestarts InvocationID "
        "ExecMainCode ExecMainStatus CPUUsageNSec; do echo $key=; done\n",
    )
    systemctl.chmod(0o755)
    (place / "jobs").mkdir()
    yield RolloutHost(repository, place)
    shutil.rmtree(place)


INTERRUPT = signal.SIGINT
