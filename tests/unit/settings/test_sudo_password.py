"""The password that sudo gets: to the host by stdin, there in a file, in no command."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyinfra.api import StringCommand
from pyinfra.connectors import util

from pyinfra_deploy.settings import sudo_password
from pyinfra_deploy.settings.pyinfra_hosts import pyinfra_inventory

if TYPE_CHECKING:
    from tests.fakes.repository import Repository

PASSWORD = "hunter2 '$(id)' \\n\"word "

PATCHED = ("_ensure_sudo_askpass_set_for_host", "make_unix_command")


class Host:
    """A host whose shell is this machine's."""

    def __init__(self, directory: Path, **data: Any) -> None:
        self.data = data
        self.connector_data: dict[str, Any] = {}
        self.directory = directory
        self.commands: list[str] = []
        self.shell = "sh"

    def get_temp_dir_config(self) -> str:
        return str(self.directory)

    def run_shell_command(self, command: Any, _stdin: str = "") -> tuple[bool, Any]:
        text = command if isinstance(command, str) else command.get_raw_value()
        self.commands.append(text)
        done = subprocess.run(
            [self.shell, "-c", text],
            input=f"{_stdin}\n",
            env={**os.environ, "XDG_RUNTIME_DIR": str(self.directory)},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = done.stdout.splitlines()
        return done.returncode == 0, SimpleNamespace(stdout_lines=lines, output=done.stderr)


@pytest.fixture(autouse=True)
def as_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PATCHED:
        monkeypatch.setattr(util, name, getattr(util, name))  # put back after the test
    sudo_password.keep_sudo_password_out_of_argv()


def sent(host: Any, **arguments: Any) -> str:
    state: Any = None
    line = util.make_unix_command_for_host(state, host, StringCommand("id"), **arguments)
    raw: str = line.get_raw_value()
    return raw


@pytest.mark.parametrize("where", ["inventory", "typed"])
def test_sudo_finds_it_and_no_command_holds_it(tmp_path: Path, where: str) -> None:
    host = Host(tmp_path)
    arguments: dict[str, Any] = {"_sudo": True}
    if where == "inventory":
        host.data["_sudo_password"] = arguments["_sudo_password"] = PASSWORD
    else:
        host.connector_data["prompted_sudo_password"] = PASSWORD
    line = sent(host, **arguments)
    assert "sudo -H -A -k" in line
    assert not [text for text in (line, *host.commands) if "hunter2" in text]
    assert sudo_password.IN_ITS_PLACE in line
    (program,) = tmp_path.iterdir()
    assert f"SUDO_ASKPASS={program} " in line
    assert stat.S_IMODE(program.stat().st_mode) == 0o700
    asked = subprocess.run([program], capture_output=True, text=True, check=True)
    assert asked.stdout == f"{PASSWORD}\n"
    sent(host, **arguments)
    assert len(host.commands) == 1, "once a connection"
    # What pyinfra removes when it disconnects.
    util.remove_any_sudo_askpass_file(host)
    assert list(tmp_path.iterdir()) == []
    sent(host, **arguments)
    assert len(list(tmp_path.iterdir())) == 1, "another connection, another file"


def test_without_a_password_nothing_is_written(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert sent(host, _sudo=True) == "sudo -H -n sh -c id"
    assert host.commands == []


def test_a_directory_that_takes_no_programs_is_passed_over(tmp_path: Path) -> None:
    host = Host(tmp_path / "absent", _sudo_password=PASSWORD)
    line = sent(host, _sudo=True, _sudo_password=PASSWORD)
    program = Path(line.split("SUDO_ASKPASS=")[1].split()[0])
    assert program.parent in (Path("/dev/shm"), Path(os.environ.get("TMPDIR", "/tmp")))
    program.unlink()


def test_an_inventory_switches_it_on(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyinfra looks both up in its module whenever it makes a command."""
    for name in PATCHED:
        monkeypatch.setattr(util, name, None)
    repository.write("inventories/prod.py", "")
    pyinfra_inventory(str(repository.root / "inventories/prod.py"))
    assert util._ensure_sudo_askpass_set_for_host is sudo_password.askpass_of
    assert util.make_unix_command is sudo_password.command_without_password
