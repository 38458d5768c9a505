"""Keys and the CA as other programs see them: pyinfra pushes, ansible-vault reads."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.keys import ca, push
from tests.fakes.key_fleet import gateway_host
from tests.fakes.traced import order, traced

if TYPE_CHECKING:
    import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
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


def test_keys_and_ca_are_written_durably(tmp_path: Path) -> None:
    """A power cut of the control machine leaves no inventory with half a key."""
    (tmp_path / "inventories/prod").mkdir(parents=True)
    code = (
        "import sys; from pathlib import Path; from pyinfra_deploy.keys import ca, keyfile; "
        "from pyinfra_deploy.settings.fleet import Fleet; "
        "from tests.fakes.key_fleet import gateway_host; root = Path(sys.argv[1]); "
        "host = gateway_host('gw1', '10.1.2.3', plaintext_ca_key=True, create_first_key=True); "
        "fleet = Fleet(name='prod', directory=root / 'inventories/prod', root=root, "
        "hosts={'gw1': host}, groups={'gateway': ['gw1']}); "
        "keyfile.ensure_first_key(fleet); ca.ensure_ca(fleet); "
        "keyfile.create(keyfile.keys_path(fleet), 'chat', out=root / 'chat.txt')"
    )
    calls = traced(
        tmp_path,
        [sys.executable, "-c", code, str(tmp_path)],
        environment={"PYTHONPATH": str(REPOSITORY)},
    )
    place = "/inventories/prod"
    for name in ("first-key.txt", "keys.json", "ca.key", "ca.crt"):
        order(
            calls,
            rf"^openat .*{place}/TEMPORARY.*O_EXCL.*0600",
            rf"^write \d+<{place}/TEMPORARY>",
            rf"^fsync \d+<{place}/TEMPORARY>",
            rf'^rename "{place}/TEMPORARY", "{place}/{name}"',
            rf"^fsync \d+<{place}>",
        )
    order(calls, r"^write \d+</chat.txt>", r"^fsync \d+</chat.txt>", r"^fsync \d+<>",
          rf'^rename .*"{place}/keys.json"')  # fmt: skip
    renames = [re.findall(r'"([^"]+)"', call)[1] for call in calls if call.startswith("rename ")]
    # What only the other half can be made from comes first.
    assert [name.rsplit("/", 1)[1] for name in renames] == [
        "first-key.txt", "keys.json", "ca.key", "ca.crt", "keys.json",
    ]  # fmt: skip
    for at in [at for at, call in enumerate(calls) if call.startswith("rename ")]:
        assert calls[at - 1].startswith("fsync "), calls[at - 1 : at + 1]


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
