"""One lab host that nothing is deployed to, beside those of other tests, and an inventory for it
like production's: eight L20, vLLM for CUDA 13, whose states the plan has to tell apart."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import yaml

from lab import hosts, lifecycle, network
from lab.inventory import ssh_arguments, write_inventory
from lab.layout import current_layout
from lab.plan import ADMIN_USER, Host, address_of
from pyinfra_deploy.facts import collected
from pyinfra_deploy.facts.collected import CollectedOutputs
from tests.hosts.lab_session import shell
from tests.hosts.pyinfra_run import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NAME = "gpu90"
HOST = Host(NAME, "bookworm", ("lab",))
INVENTORY = "foresight"
SHARED = ("deploy.py", "ansible.cfg", "pyinfra_deploy", "files", "templates", "locks", "gateway")
# Processes of this very look, and of a login that comes or goes.
LOGIN = "sshd|sudo|sh|ps|sort|uniq|grep|sed|sd-pam|systemd-hostnam"
SETTINGS: dict[str, Any] = {
    "gpu_host": {
        "expected_gpus": 8,
        "expected_gpu_model": "NVIDIA L20",
        "expected_pcie_width": 16,
    },
    "runtime": {
        "vllm": "0.33.0",
        # Said to be for Debian 12's own Python: nothing is installed from it.
        "lock": "build/vllm-py311.txt",
        "python": "3.11",
    },
    "model": {
        "id": "Qwen/Qwen3-235B-A22B-FP8",
        "variant": "fp8",
        "quantization_accepted_for": "tests",
        # Nobody listens there: a deploy that is refused needs no hub.
        "endpoint": "http://127.0.0.1:9",
    },
    "engine": {
        "args": {
            "tensor-parallel-size": 8,
            "enable-expert-parallel": True,
            "max-model-len": 16384,
            "gpu-memory-utilization": 0.90,
        }
    },
    "gateway": {"server_name": "foresight.fleet.internal", "plaintext_ca_key": True},
}


def bring_up() -> None:
    """The host, fresh."""
    with hosts.exclusive_as_root("up", install=True):
        lab = lifecycle.open_lab(current_layout())
        _drop(lab)  # what a killed test run has left
        lifecycle.bring_up(lab, [HOST])
        lifecycle.tidy(lab)
    hosts.wait_ssh(NAME)


def take_down(*, was_down: bool) -> None:
    """Only this host; the lab with it where there was none before."""
    if was_down:
        hosts.down()
        return
    with hosts.exclusive_as_root("down"):
        lab = lifecycle.open_lab(current_layout())
        _drop(lab)
        lifecycle.tidy(lab)


def _drop(lab: lifecycle.Lab) -> None:
    if NAME not in lab.state.hosts:
        return
    lifecycle.stop_host(lab, NAME)
    network.remove_host_network(NAME)
    lifecycle.discard_clone(lab, NAME)
    del lab.state.hosts[NAME]
    shutil.rmtree(lab.layout.host_key(NAME).parent, ignore_errors=True)
    lab.save()
    write_inventory(lab.layout, lab.state)


def checkout(root: Path, names: Iterable[str]) -> Path:
    """A directory that is to pyinfra and fleet what the repository is; every name is an alias of
    the one host. Returns the inventory's path."""
    for name in SHARED:
        (root / name).symlink_to(REPOSITORY / name)
    lock = (REPOSITORY / "locks/runtime/vllm-0.33.0-cu130-py312-linux_x86_64.txt").read_text()
    assert "--python-version 3.12" in lock
    own = lock.replace("--python-version 3.12", "--python-version 3.11")
    # Locks are the repository's; build/ is ignored by git.
    (REPOSITORY / "build").mkdir(exist_ok=True)
    (REPOSITORY / SETTINGS["runtime"]["lock"]).write_text(own)
    (root / "build").symlink_to(REPOSITORY / "build")
    directory = root / "inventories" / INVENTORY
    directory.mkdir(parents=True)
    inventory = directory.with_suffix(".py")
    inventory.write_text((REPOSITORY / "inventories" / "lab.py").read_text())
    layout = current_layout()
    group = {
        "hosts": {name: {"ansible_host": address_of(NAME)} for name in names},
        "vars": {
            "ansible_user": ADMIN_USER,
            "ansible_become": True,
            "ansible_ssh_private_key_file": str(layout.admin_key),
            "ansible_ssh_common_args": ssh_arguments(layout),
        },
    }
    roles: dict[str, Any] = {
        role: {"hosts": {name: {} for name in names}} for role in ("gpu", "gateway")
    }
    document = {"all": {"children": {INVENTORY: group, **roles}}}
    (directory / "hosts.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    (root / "group_vars").mkdir()
    (root / "group_vars" / f"{INVENTORY}.yml").write_text(yaml.safe_dump(SETTINGS))
    return inventory


def collect(directory: Path) -> None:
    """What `fleet facts collect` writes into DIR/HOST, by the same command, through one ssh."""
    printed = shell(NAME, str(CollectedOutputs().command()))
    collected.write_directory(directory, collected.parse(printed.splitlines()))


def inside(host: str) -> dict[str, str]:
    """Units, processes, packages, users and names of ours in places that live, a line each;
    host_state.tree has the other files."""
    script = f"""
        systemctl list-unit-files --no-legend --no-pager | grep -v transient | sed 's/^/unit-file /'
        systemctl list-units --all --no-legend --no-pager --plain --type=service,socket,timer |
            awk '{{print "unit", $1, $2, $3, $4}}' | grep -v -e session -e user@ -e user-runtime
        ps -eo comm= | sort | uniq -c | grep -v -w -E '{LOGIN}'
        dpkg-query -W -f 'package ${{Package}} ${{Version}} ${{db:Status-Abbrev}}\\n'
        getent passwd | sed 's/^/user /'
        # host_state.ALIVE has these for what others write there; of ours nothing may be new.
        find /run /tmp /var/tmp /root /home /var/log -xdev \\
            '(' -name '*llm*' -o -name '*fleet*' ')' -printf 'name %y %p\\n' || true
    """
    lines = shell(host, script).splitlines()
    return {line.strip(): "" for line in lines}
