"""What lies beside hosts.yml in an inventory's directory is no inventory to Ansible."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BESIDE = {
    "keys.json": '{"schema": 1, "serial": 1, "keys": {}}',
    "ca.crt": "-----BEGIN CERTIFICATE-----\n",
    "ca.key": "$ANSIBLE_VAULT;1.1;AES256\n",
    "first-key.txt": "sk-x\n",
    "model.json": '{"model": {"id": "o/m"}, "files": []}',
    "model.json.sig": "{}",
    "model/config.json": '{"decoder": {"type": "x"}}',
    "model/chat_template.jinja": "{% for message in messages %}{{ '<|im_start|>",
}


def test_nothing_but_the_hosts_is_read(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory"
    for name, content in BESIDE.items():
        (inventory / name).parent.mkdir(parents=True, exist_ok=True)
        (inventory / name).write_text(content)
    (inventory / "hosts.yml").write_text("all: {children: {gpu: {hosts: {gpu1: {}}}}}\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-inventory"), "-i", inventory, "--list"],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert set(json.loads(done.stdout)) == {"_meta", "all", "gpu"}
