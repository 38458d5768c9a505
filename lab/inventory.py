"""inventories/lab/hosts.yml and the ssh files that go with it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import yaml

from lab.durable import write_atomic
from lab.layout import Layout, hand_to_operator
from lab.plan import ADMIN_USER, INVENTORY_GROUP, Host

if TYPE_CHECKING:
    from lab.state import State

_HEADER = "# Written by `lab up` and removed by `lab down`; see lab/inventory.py.\n"


def ssh_arguments(layout: Layout) -> str:
    """ansible_ssh_common_args: the lab's own list of host keys, and no other host."""
    known_hosts = shlex.quote(f"UserKnownHostsFile={layout.known_hosts}")
    return f"-o {known_hosts} -o StrictHostKeyChecking=yes"


def render_inventory(layout: Layout, hosts: list[Host]) -> str:
    """Ansible YAML: connection of all hosts in the group `lab`, roles as further groups."""
    groups = dict.fromkeys(group for host in hosts for group in host.groups)
    children: dict[str, object] = {
        INVENTORY_GROUP: {
            "vars": {
                "ansible_user": ADMIN_USER,
                "ansible_become": True,
                "ansible_ssh_private_key_file": str(layout.admin_key),
                "ansible_ssh_common_args": ssh_arguments(layout),
            },
            "hosts": {host.name: {"ansible_host": host.address} for host in hosts},
        }
    }
    for group in groups:
        if group != INVENTORY_GROUP:
            members: dict[str, dict[str, str]] = {
                host.name: {} for host in hosts if group in host.groups
            }
            children[group] = {"hosts": members}
    return _HEADER + yaml.safe_dump({"all": {"children": children}}, sort_keys=False)


def render_known_hosts(hosts: list[Host], public_keys: dict[str, str]) -> str:
    """One line a host; `public_keys` are the texts of the hosts' .pub files."""
    lines = []
    for host in hosts:
        kind, key = public_keys[host.name].split()[:2]
        lines.append(f"{host.address},{host.name} {kind} {key}\n")
    return "".join(lines)


def render_ssh_config(layout: Layout, hosts: list[Host]) -> str:
    """For `ssh -F`: the hosts by name.

    Debian 12's ssh would agree on keys by sntrup761, for which it alone takes 0.1 s of CPU.
    """
    stanzas = [f"Host {host.name}\n  HostName {host.address}\n" for host in hosts]
    common = f"""\
Host *
  User {ADMIN_USER}
  IdentityFile "{layout.admin_key}"
  IdentitiesOnly yes
  UserKnownHostsFile "{layout.known_hosts}"
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  BatchMode yes
  KexAlgorithms curve25519-sha256
  ConnectTimeout 5
  ServerAliveInterval 5
  ServerAliveCountMax 3
  LogLevel ERROR
"""
    return "".join([*stanzas, common])


def write_inventory(layout: Layout, state: State) -> None:
    """Write all three files. The host keys must exist."""
    hosts = state.sorted_hosts()
    keys = {host.name: layout.host_key(host.name).with_suffix(".pub").read_text() for host in hosts}
    write_atomic(layout.known_hosts, render_known_hosts(hosts, keys))
    write_atomic(layout.ssh_config, render_ssh_config(layout, hosts))
    write_atomic(layout.inventory, render_inventory(layout, hosts))
    hand_to_operator(layout.inventory.parent)
    hand_to_operator(layout.inventory)
