"""The same files give the same groups, hosts and variables as the real ansible-inventory."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.settings.inventory_file import read_inventory
from pyinfra_deploy.settings.secret import Secret
from pyinfra_deploy.settings.variables import VarsFiles, merge
from pyinfra_deploy.settings.vault import decrypt
from pyinfra_deploy.settings.yaml_source import Reader

if TYPE_CHECKING:
    from tests.fakes.repository import Repository

ANSIBLE_INVENTORY = Path(sysconfig.get_path("scripts")) / "ansible-inventory"
PASSWORD = "only-for-this-test"

# Diamonds, depths, priorities, ranges, ports, hosts in several groups, strings for mappings,
# a group whose parent comes later, JSON, merge keys, YAML 1.1 scalars.
HOSTS = """\
diamond_left:
  children:
    diamond_bottom:
  vars: {who: left, left: 1}
all:
  vars:
    who: all
    everywhere: &base {a: 1, b: 2}
    scalars: [yes, Off, 012, 1_000, 1e5, 1.5, ~, "yes", 2024-01-02, 12:30, 0x1F, null, .inf]
  hosts:
    lonely:
    gpu[08:10]:2222:
      from_range: true
  children:
    ungrouped:
      vars: {in_ungrouped: yes}
    diamond_top:
      vars: {who: top, top: 1}
      children:
        diamond_left:
        diamond_right:
          vars: {who: right, right: 1}
          children:
            diamond_bottom:
              vars: {who: bottom}
              hosts:
                gpu[01:03]:
                gpu03: {who: gpu03}
                "db-[a:c:2].example.com":
    deep:
      children:
        deeper:
          children:
            deepest:
              hosts: {gpu01: , gpu08: }
              vars: {depth: deepest}
            diamond_bottom:
        lonely_group:
      vars: {depth: deep, who: deep}
    zz_weak:
      vars: {rank: zz}
      hosts: gpu01
    aa_strong:
      vars: {rank: aa, ansible_group_priority: 20}
      hosts: {gpu01: {first: 1}}
    mm_middle:
      vars: {rank: mm, ansible_group_priority: "7", mapping: {<<: *base, b: 3}}
      hosts: {gpu01: {second: 2}, gpu02: , "[2001:db8::1]:2200": {six: 6}}
    at_root:
      hosts: {gpu02: {replaced: {from_hosts: 1}}}
      vars: {replaced: {from_group: 1}, level: inventory}
outside:
  children: zz_weak
  vars: {outside: true, who: outside}
"""

FILES = {
    "group_vars/all.yml": "level: root-all\nroot_all: 1\nwho: group_vars\n",
    "group_vars/at_root/10-first.yml": "level: dir-10\nonly_first: 1\n",
    "group_vars/at_root/20-second.yaml": "level: dir-20\n",
    "group_vars/at_root/nested/deep": "level: dir-nested\nnested: 1\n",
    "group_vars/at_root/.hidden.yml": "level: hidden\n",
    "group_vars/at_root/backup.yml~": "level: backup\n",
    "group_vars/at_root/readme.txt": "level: txt\n",
    "group_vars/at_root.yml": "level: beside-a-directory\n",
    "group_vars/mm_middle.json": '{"json": [1e5, true,\t"x"], "replaced": {"json": 1}}',
    "group_vars/zz_weak": "rank: zz-file\nno_suffix: 1\n",
    "group_vars/diamond_bottom.yml": (
        "who: bottom-file\nsecret: !vault |\n{vault}\nraw: !unsafe '{{ x }}'\n"
    ),
    "group_vars/deepest.yml": "",
    "inventories/nasty/group_vars/all/x.yml": "level: beside-all\nbeside_all: 1\nroot_all: 2\n",
    "inventories/nasty/group_vars/aa_strong.yaml": "rank: aa-beside\nbeside: 1\n",
    "group_vars/aa_strong.yml": "rank: aa-root\n",
    "inventories/nasty/host_vars/gpu01.yml": "host_level: beside\nsecond: 22\n",
    "host_vars/gpu01/one.yml": "host_level: root\n",
    "host_vars/gpu02.yml": "replaced: {from_host_file: 1}\n",
    "host_vars/db-a.example.com.yml": "dotted: 1\n",
}


@pytest.fixture
def nasty(empty: Repository, monkeypatch: pytest.MonkeyPatch) -> Repository:
    from ansible.parsing.vault import VaultLib, VaultSecret

    vault = VaultLib([("default", VaultSecret(PASSWORD.encode()))])
    text = vault.encrypt("the secret").decode().strip()
    for path, content in FILES.items():
        indented = "\n".join("  " + line for line in text.splitlines())
        empty.write(path, content.replace("{vault}", indented))
    whole = vault.encrypt("in_vault: yes\nwho: vaulted\n").decode()
    empty.write("group_vars/lonely_group.yml", whole)
    empty.write("host_vars/lonely.yml", whole)
    empty.write("inventories/nasty/hosts.yml", HOSTS)
    # A script, as vault_password_file may be one.
    script = empty.write("password.sh", f"#!/bin/sh\necho {PASSWORD}\n")
    script.chmod(0o700)
    empty.write("ansible.cfg", "[defaults]\nplaybook_dir = .\nvault_password_file = password.sh\n")
    return empty


def test_groups_hosts_and_variables_are_those_of_ansible(nasty: Repository) -> None:
    files = _compare(nasty.root)
    # The file beside a directory of the same name is read by nobody, which deserves a word.
    assert [w.file for w in files.warnings] == ["group_vars/at_root.yml"]


@pytest.mark.parametrize("seed", [20_240])
def test_random_inventories_are_read_as_by_ansible(empty: Repository, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    names = [f"{chance.choice('abcxyz')}{number}" for number in range(24)]
    groups: dict[str, Any] = {name: {"vars": {}, "hosts": {}, "children": {}} for name in names}
    for number, name in enumerate(names):
        # Children come later in `names`, so there is no circle, and plenty of diamonds.
        later = names[number + 1 :]
        for child in chance.sample(later, min(len(later), chance.randrange(4))):
            groups[name]["children"][child] = None
        for host in chance.sample(range(12), chance.randrange(4)):
            groups[name]["hosts"][f"host{host}"] = {"h": name} if chance.random() < 0.3 else None
        groups[name]["vars"] = {key: name for key in "pqrs" if chance.random() < 0.4}
        if chance.random() < 0.4:
            groups[name]["vars"]["ansible_group_priority"] = chance.randrange(-1, 5)
        for directory in ("group_vars", "inventories/nasty/group_vars"):
            if chance.random() < 0.2:
                empty.write(f"{directory}/{name}.yml", json.dumps({"q": name, "s": directory}))
    shuffled = chance.sample(names, len(names))
    text = json.dumps({name: groups[name] for name in shuffled})
    empty.write("inventories/nasty/hosts.yml", text)
    empty.write("ansible.cfg", "[defaults]\nplaybook_dir = .\n")
    _compare(empty.root)


def _compare(root: Path) -> VarsFiles:
    theirs = _ansible(root)
    reader = Reader(root)
    inventory = read_inventory(reader.read(root / "inventories/nasty/hosts.yml"))
    files = VarsFiles(reader)
    merged = merge(inventory, files)
    assert files.problems == []

    hostvars = theirs["_meta"]["hostvars"]
    assert set(inventory.hosts) >= set(hostvars)
    for host, one in merged.items():
        ours = {key: _comparable(located.value, root) for key, located in one.variables.items()}
        # ansible-inventory leaves hosts without any variable out.
        assert ours == _comparable(hostvars.get(host, {}), root), host
    for name, group in inventory.groups.items():
        if name != "all":
            assert group.hosts == theirs.get(name, {}).get("hosts", []), name
            assert group.children == theirs.get(name, {}).get("children", []), name
    return files


def _comparable(value: Any, root: Path) -> Any:
    """Dates are text in ansible-inventory's JSON, and a vault value is decrypted for the test."""
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, dict):
        if "__ansible_vault" in value:
            return decrypt(value["__ansible_vault"], root, "theirs")
        if "__ansible_unsafe" in value:
            return value["__ansible_unsafe"]
        return {str(k): _comparable(v, root) for k, v in value.items()}
    if isinstance(value, list):
        return [_comparable(item, root) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


def _ansible(root: Path) -> dict[str, Any]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [str(ANSIBLE_INVENTORY), "-i", "inventories/nasty/hosts.yml", "--list"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result
