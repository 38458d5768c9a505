"""Playbooks on some hosts, one after the other.

    python -m pyinfra_deploy.playbooks SPEC.json

SPEC: {root, inventory: its hosts.yml, playbooks: [path in root], hosts: [name], check: bool,
syntax: bool, requirements: path or null, requirements_directory: path or null, timeout_seconds}.
What happens goes to stderr, a line at a time; the end to stdout:
{results: {playbooks: [{playbook, hosts, seconds, concerned, changed, failed}], refused: {what, why,
fix, detail} or null}}. A host on which one has failed is left out of those after it.

ansible-playbook finds passwords by itself, in the file or script that ANSIBLE_VAULT_PASSWORD_FILE
or ansible.cfg name, and secrets from the environment: none is in a command line or a file of ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyinfra_deploy.playbooks import requirements
from pyinfra_deploy.playbooks.events import Told
from pyinfra_deploy.settings.vault import configuration

# config/base.yml of ansible-core: DEFAULT_ROLES_PATH, COLLECTIONS_PATHS.
PATHS = {
    "roles": (
        "ANSIBLE_ROLES_PATH",
        "roles_path",
        "~/.ansible/roles:/usr/share/ansible/roles:/etc/ansible/roles",
    ),
    "collections": (
        "ANSIBLE_COLLECTIONS_PATH",
        "collections_path",
        "~/.ansible/collections:/usr/share/ansible/collections",
    ),
}
CANCELED = 130
ENDING_SECONDS = 20.0
# ansible-playbook is the leader of a session of its own and outlives a runner that is killed;
# SIGTERM ends it with its workers, SIGKILL leaves them. prctl(2): PR_SET_PDEATHSIG is kept by exec.
# What runner itself sets (config/_base.py) would turn host keys' checking off and retry files, too.
WRAPPER = """\
#!{python}
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() != {parent}:
    sys.exit(1)
with open({pid!r}, "w") as file:
    file.write(str(os.getpid()))
os.environ.update({environment!r})
if {checking!r} is None:
    os.environ.pop("ANSIBLE_HOST_KEY_CHECKING", None)
os.execv({program!r}, [{program!r}, *sys.argv[1:]])
"""


def main() -> int:
    spec: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    root = Path(spec["root"])
    results: dict[str, Any] = {"playbooks": [], "refused": None}
    try:
        environment = _environment(root, spec)
    except requirements.RefusedError as refused:
        results["refused"] = refused.as_dict
        print(json.dumps({"results": results}))
        return 1
    hosts = list(spec["hosts"])
    # Runner's files hold this process's environment: for their owner only, and gone afterwards.
    with tempfile.TemporaryDirectory(prefix="fleet-playbooks-") as name:
        inventory = _inventory(Path(name), root, spec["inventory"])
        retries = Path(name) / "failed"
        environment["PATH"] = f"{_wrapper(Path(name), retries)}{os.pathsep}{environment['PATH']}"
        for playbook in spec["playbooks"]:
            if not hosts:
                break
            found = _run(playbook, hosts, spec, inventory, environment, Path(name))
            if found is None:
                return CANCELED
            results["playbooks"].append(found)
            hosts = [host for host in hosts if host not in found["failed"]]
    print(json.dumps({"results": results}))
    return 1 if any(one["failed"] for one in results["playbooks"]) else 0


def _environment(root: Path, spec: dict[str, Any]) -> dict[str, str]:
    # ansible-playbook is beside this Python, which need not be on PATH.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = {"PATH": path, "ANSIBLE_NOCOLOR": "1"}
    if spec["requirements"] is None:
        return found
    place = requirements.installed(root, spec["requirements"], spec["requirements_directory"])
    defaults = configuration(root)
    for kind, (variable, key, default) in PATHS.items():
        before = os.environ.get(variable) or defaults.get("defaults", key, fallback=default)
        found[variable] = f"{place / kind}:{before}"
    return found


def _wrapper(scratch: Path, retries: Path) -> Path:
    """The directory of an ansible-playbook that ends when this process does."""
    program = shutil.which(
        "ansible-playbook", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    )
    path = scratch / "bin/ansible-playbook"
    path.parent.mkdir()
    path.write_text(
        WRAPPER.format(
            python=sys.executable, parent=os.getpid(), pid=str(scratch / "pid"), program=program,
            environment={
                "ANSIBLE_RETRY_FILES_ENABLED": "1", "ANSIBLE_RETRY_FILES_SAVE_PATH": str(retries)
            },
            checking=os.environ.get("ANSIBLE_HOST_KEY_CHECKING"),
        )
    )  # fmt: skip
    path.chmod(0o700)
    return path.parent


class Ending:
    """Runner's cancel callback: ends ansible-playbook on a signal or when its time is over, by
    itself at first, then by runner's SIGKILL."""

    def __init__(self, pid: Path, timeout_seconds: float) -> None:
        self.pid, self.deadline = pid, time.monotonic() + timeout_seconds
        self.interrupted = self.timed_out = False
        self.asked_at: float | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)

    def _interrupt(self, _number: int, _frame: object) -> None:
        self.interrupted = True

    def __call__(self) -> bool:
        now = time.monotonic()
        if self.asked_at is not None:
            return now - self.asked_at > ENDING_SECONDS
        self.timed_out = not self.interrupted and now > self.deadline
        if (self.interrupted or self.timed_out) and self.pid.exists():
            self.asked_at = now
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self.pid.read_text()), signal.SIGTERM)
        return False


def _inventory(scratch: Path, root: Path, inventory: str) -> list[str]:
    """The inventory itself, and an empty one beside which the repository's variables lie: Ansible
    looks for them beside inventories and playbooks, which may be in a directory of their own."""
    directory = scratch / "variables"
    directory.mkdir()
    for name in ("group_vars", "host_vars"):
        if (root / name).is_dir():
            (directory / name).symlink_to(root / name)
    (directory / "no-hosts.yml").write_text("all: {}\n")
    return [inventory, str(directory / "no-hosts.yml")]


def _run(
    playbook: str,
    hosts: list[str],
    spec: dict[str, Any],
    inventory: list[str],
    environment: dict[str, str],
    scratch: Path,
) -> dict[str, Any] | None:
    import ansible_runner

    told, began = Told(hosts), time.monotonic()
    say(f"playbook {playbook}{' (check mode)' if spec['check'] else ''} on {', '.join(hosts)}")

    def handler(event: dict[str, Any]) -> bool:
        for line in told.take(event):
            say(line)
        return True  # a falsy answer drops the event, and with it the stats

    options = [
        *(["--check"] if spec["check"] else []),
        *(["--syntax-check"] if spec["syntax"] else []),
    ]
    retries = scratch / "failed"
    shutil.rmtree(retries, ignore_errors=True)
    retries.mkdir()
    ending = Ending(scratch / "pid", spec["timeout_seconds"])
    limit = scratch / "hosts"
    limit.write_text("".join(f"{host}\n" for host in hosts))
    ran = ansible_runner.run(
        private_data_dir=str(scratch),
        project_dir=spec["root"],
        playbook=playbook,
        inventory=inventory,
        limit=f"@{limit}",
        envvars=environment,
        cmdline=" ".join(options) or None,
        settings={"pexpect_timeout": 1},
        event_handler=handler,
        cancel_callback=ending,
        quiet=True,
        suppress_env_files=True,
        suppress_output_file=True,
    )
    if ending.interrupted:
        return None
    not_to_end = {
        line for path in retries.glob("*.retry") for line in path.read_text().splitlines()
    }
    status = "timeout" if ending.timed_out else ran.status
    found = told.end(ran.rc, status, spec["timeout_seconds"], not_to_end)
    seconds = round(time.monotonic() - began, 1)
    if not found["concerned"] and not found["failed"] and not spec["syntax"]:
        say(f"playbook {playbook} concerned none of these hosts")
    return {"playbook": playbook, "hosts": hosts, "seconds": seconds, **found}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
