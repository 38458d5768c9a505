"""A small repository to write inventories into."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

LOCK = """\
vllm==0.33.0 \\
    --hash=sha256:19c8ae185dbdca23c24abdcd8ac2cf58b8e84dc284c6f6db536656601f9ffc3f
"""
HOSTS = """\
all:
  children:
    prod:
      vars: {ansible_group_priority: 10}
      hosts:
        gpu[01:02]:
    gpu:
      hosts:
        gpu[01:02]:
    gateway:
      hosts:
        gpu[01:02]:
"""
GOOD = """\
runtime:
  vllm: "0.33.0"
  lock: locks/one.txt
model:
  id: Qwen/Qwen3-32B
engine:
  args:
    max-model-len: 16384
gateway:
  server_name: llm.example.com
"""


class Repository:
    """Files under a temporary root; `write("group_vars/prod.yml", text)`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return target


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    for name in ("ANSIBLE_CONFIG", "ANSIBLE_VAULT_PASSWORD_FILE", "ANSIBLE_VAULT_IDENTITY_LIST"):
        monkeypatch.delenv(name, raising=False)
    # Keys and known hosts are of the user who runs the tests.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # A path such as inventories/lab.py is of the working directory, which may have its own lab.
    monkeypatch.chdir(tmp_path)
    return Repository(tmp_path)


@pytest.fixture
def repository(empty: Repository) -> Repository:
    """Two good hosts in the inventory prod, its settings in group_vars/prod.yml."""
    empty.write("ansible.cfg", "[defaults]\nplaybook_dir = .\n")
    empty.write("locks/one.txt", LOCK)
    empty.write("inventories/prod.py", "")
    empty.write("inventories/prod/hosts.yml", HOSTS)
    empty.write("group_vars/prod.yml", GOOD)
    return empty
