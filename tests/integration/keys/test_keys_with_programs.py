"""Keys and the CA as other programs see them: pyinfra pushes, ansible-vault reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.keys import ca, push
from tests.fakes.key_fleet import gateway_host

if TYPE_CHECKING:
    import pytest

INVENTORY = """
gateway = [
    "@local",
    ("closed", {"ssh_hostname": "127.0.0.1", "ssh_port": 1, "ssh_connect_retries": 0}),
]
engine = [("engine", {"ssh_hostname": "127.0.0.1", "ssh_port": 1})]
"""
DEPLOY = """
from pyinfra.operations import files
files.line(name="Keys", path="pushed", line="yes", _sudo=False)
"""


def test_a_real_run_of_pyinfra_is_understood(tmp_path: Path, make_fleet: Any) -> None:
    fleet = make_fleet(gateway_host("@local", ""), gateway_host("closed", ""))
    (tmp_path / "inventories" / "prod.py").write_text(INVENTORY)
    deploy = tmp_path / push.DEPLOY
    deploy.parent.mkdir(parents=True)
    deploy.write_text(DEPLOY)
    pushed = push.push(fleet)
    assert pushed.reached == ("@local",), pushed.output
    assert pushed.missed == ("closed",)
    assert "closed" in pushed.output
    assert (tmp_path / "pushed").read_text() == "yes\n"
    deploy.write_text("raise RuntimeError('a broken deploy')")
    assert push.push(fleet).reached == ()
    pushed = push.push(fleet, timeout_seconds=0.05)
    assert pushed.reached == ()
    assert "took too long" in pushed.output


def test_ansible_vault_reads_the_cas_key(
    tmp_path: Path, make_fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = tmp_path / "password"
    password.write_text("right\n")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(password))
    authority = ca.ensure_ca(make_fleet(plaintext_ca_key=True))
    # Beside this interpreter: both come with the project's requirements.
    program = Path(sys.executable).with_name("ansible-vault")
    result = subprocess.run(
        [program, "view", str(authority.key_path)], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("-----BEGIN PRIVATE KEY-----")
