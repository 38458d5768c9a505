"""Settings inside a real pyinfra process, and what they import."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fakes.repository import HOSTS

if TYPE_CHECKING:
    from tests.fakes.repository import Repository

REPOSITORY = Path(__file__).parents[3]


def _encrypt(text: str) -> str:
    from ansible.parsing.vault import VaultLib, VaultSecret

    vault = VaultLib([("default", VaultSecret(b"right"))])
    encrypted: str = vault.encrypt(text).decode()
    return encrypted


def _pyinfra(repository: Repository, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyinfra", *arguments],
        cwd=repository.root,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "HOME": str(repository.root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_pyinfra_itself_stops_before_it_connects(repository: Repository) -> None:
    """pyinfra 3.10 wraps Exception from an inventory file in a traceback, but not SystemExit."""
    repository.write(
        "inventories/prod.py",
        "from pyinfra_deploy.settings import pyinfra_inventory\n"
        "globals().update(pyinfra_inventory(__file__))\n",
    )
    done = _pyinfra(repository, "--limit", "gup", "inventories/prod.py", "exec", "--", "true")
    assert done.returncode == 1
    assert "--limit gup\n  matches no group and no host of prod." in done.stderr
    assert 'did you mean "gpu"' in done.stderr
    assert "Traceback" not in done.stderr
    assert "Connecting" not in done.stderr


@pytest.mark.parametrize("words", [("debug-inventory",), ("exec", "--", "true")])
def test_passwords_are_in_none_of_pyinfras_debug_output(
    repository: Repository, words: tuple[str, ...]
) -> None:
    repository.write(
        "inventories/prod/hosts.yml",
        HOSTS.replace(
            "vars: {",
            "vars: {ansible_host: 127.0.0.1, ansible_port: 9, ansible_become: true, "
            "ansible_password: hunter1, ansible_become_password: hunter2, ",
        ),
    )
    repository.write(
        "inventories/prod.py",
        "from pyinfra_deploy.settings import pyinfra_inventory\n"
        "globals().update(pyinfra_inventory(__file__))\n",
    )
    done = _pyinfra(repository, "--debug", "-vvv", "inventories/prod.py", *words)
    output = done.stdout + done.stderr
    assert ("ssh_password" if words[0] == "debug-inventory" else "'password': '********'") in output
    assert "hunter" not in output


def test_quietly_inside_pyinfra(repository: Repository) -> None:
    """pyinfra patches gevent in, which would print a traceback when ansible is imported."""
    repository.write("vault.txt", _encrypt("hunter2"))
    repository.write("password", "right")
    script = (
        "from gevent import monkey; monkey.patch_all()\n"
        "import socket; before = socket.getaddrinfo\n"
        "from pathlib import Path; from pyinfra_deploy.settings.vault import decrypt\n"
        "assert decrypt(Path('vault.txt').read_text(), Path('.'), 'vault.txt') == 'hunter2'\n"
        "assert socket.getaddrinfo is before\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=repository.root,
        env={
            "PYTHONPATH": str(REPOSITORY),
            "ANSIBLE_VAULT_PASSWORD_FILE": "password",
            "HOME": str(repository.root),
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_ansible_is_not_imported(repository: Repository) -> None:
    script = (
        "import sys; from pyinfra_deploy.settings import load_fleet;"
        f"load_fleet('prod', __import__('pathlib').Path({str(repository.root)!r}));"
        "assert not [m for m in sys.modules if m.split('.')[0] == 'ansible']"
    )
    subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=True, timeout=30)


@pytest.mark.parametrize(
    ("address", "move"),
    [
        ("127.0.0.1", "nothing answers there: is the host up"),
        ("nowhere.invalid", "the name is not known to this machine's resolver"),
    ],
)
def test_a_host_out_of_reach_comes_with_the_next_move(
    repository: Repository, address: str, move: str
) -> None:
    with socket.socket() as bound:  # bound and not listening: the port is refused
        bound.bind(("127.0.0.1", 0))
        repository.write(
            "inventories/prod/hosts.yml",
            HOSTS.replace(
                "vars: {",
                f"vars: {{ansible_port: {bound.getsockname()[1]}, ansible_host: {address}, ",
            ).replace("[01:02]", "01"),
        )
        repository.write(
            "inventories/prod.py",
            "from pyinfra_deploy.settings import pyinfra_inventory\n"
            "globals().update(pyinfra_inventory(__file__))\n",
        )
        done = _pyinfra(repository, "-y", "inventories/prod.py", "exec", "--", "true")
    assert done.returncode != 0
    assert f"nothing was changed on it. Next: {move}" in " ".join(done.stderr.split())


def _hang_up(server: socket.socket) -> None:
    server.accept()[0].close()


def test_a_host_that_hangs_up_is_reported_without_a_traceback(repository: Repository) -> None:
    """paramiko logs one, which Python prints when nobody takes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = f"vars: {{ansible_port: {server.getsockname()[1]}, ansible_host: 127.0.0.1, "
        repository.write(
            "inventories/prod/hosts.yml", HOSTS.replace("vars: {", at).replace("[01:02]", "01")
        )
        repository.write(
            "inventories/prod.py",
            "from pyinfra_deploy.settings import pyinfra_inventory\n"
            "globals().update(pyinfra_inventory(__file__))\n",
        )
        threading.Thread(target=_hang_up, args=(server,), daemon=True).start()
        done = _pyinfra(repository, "-y", "inventories/prod.py", "exec", "--", "true")
    assert done.returncode != 0
    assert "SSH error (" in done.stderr
    assert "Traceback" not in done.stderr
