from pathlib import Path

import pytest

from lab import machine
from lab.image import (
    PREPARE,
    base_name,
    layer_files,
    layer_name,
    layer_script,
    mmdebstrap_command,
    stage_files,
)
from lab.machine import lend_sysctls, restore_sysctls, write_sysctls
from lab.passed_on import FileCopy, PassedOn
from lab.state import State


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "sysctl_path", lambda key: tmp_path / key)
    (tmp_path / "net.ipv4.ip_forward").write_text("0\n")
    (tmp_path / "fs.inotify.max_user_instances").write_text("128\n")
    return tmp_path


def values(kernel: Path) -> list[str]:
    return [(kernel / key).read_text().strip() for key in machine.SYSCTLS]


def test_sysctls_are_lent_and_given_back(kernel: Path) -> None:
    state = State()
    assert lend_sysctls(state)
    assert values(kernel) == ["0", "128"]  # noted first, changed after the note is on disk
    write_sysctls(state)
    assert values(kernel) == ["1", "8192"]
    assert not lend_sysctls(state)
    restore_sysctls(state)
    assert values(kernel) == ["0", "128"]


def test_a_second_loan_keeps_the_first_note(kernel: Path) -> None:
    state = State()
    lend_sysctls(state)
    write_sysctls(state)
    (kernel / "fs.inotify.max_user_instances").write_text("256\n")  # the machine was rebooted, say
    lend_sysctls(state)
    assert state.sysctls["fs.inotify.max_user_instances"].before == "128"


def test_what_somebody_else_set_since_is_left(
    kernel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = State()
    lend_sysctls(state)
    write_sysctls(state)
    (kernel / "fs.inotify.max_user_instances").write_text("9000\n")
    restore_sysctls(state)
    assert values(kernel) == ["0", "9000"]
    assert "is 9000" in capsys.readouterr().err


def test_a_machine_that_has_more_is_not_changed(kernel: Path) -> None:
    (kernel / "net.ipv4.ip_forward").write_text("1\n")
    (kernel / "fs.inotify.max_user_instances").write_text("65536\n")
    state = State()
    assert not lend_sysctls(state)
    assert state.sysctls == {}


def test_bases_differ_by_suite() -> None:
    assert base_name("bookworm").startswith("bookworm-")
    assert base_name("bookworm") != base_name("trixie")


def test_mmdebstrap_command() -> None:
    command = mmdebstrap_command(
        "bookworm",
        Path("/t"),
        Path("/s/debian.sources"),
        Path("/s/apt.conf"),
        ["/etc/apt/auth.conf"],
    )
    assert command[-3:] == ["bookworm", "/t", "/s/debian.sources"]
    assert "--aptopt=/s/apt.conf" in command
    assert "--setup-hook=copy-in /etc/apt/auth.conf /etc/apt/auth.conf.d" in command
    include = next(word for word in command if word.startswith("--include="))
    assert "python3-minimal" in include
    # The deploy must install what it needs: the base must not have it already.
    assert "venv" not in include


def test_a_layer_is_renewed_when_anything_in_it_changes() -> None:
    files = {"/etc/x": FileCopy(b"1")}
    names = {
        layer_name("bookworm", "bases/a", files),
        layer_name("bookworm", "bases/b", files),
        layer_name("bookworm", "bases/a", {"/etc/x": FileCopy(b"2")}),
        layer_name("bookworm", "bases/a", {"/etc/x": FileCopy(b"1", 0o600)}),
    }
    assert len(names) == 4
    assert layer_name("bookworm", "bases/a", files) in names


def test_the_layer_holds_the_users_key_and_hardened_sshd() -> None:
    files = layer_files(
        "trixie", PassedOn(files={"/etc/pip.conf": FileCopy(b"p")}), "ssh-ed25519 A"
    )
    assert files["/etc/pip.conf"].data == b"p"
    assert files["/usr/lib/fleet-lab/admin.pub"].data == b"ssh-ed25519 A"
    assert b"PasswordAuthentication no" in files["/etc/ssh/sshd_config.d/10-fleet-lab.conf"].data
    assert files["/etc/sudoers.d/admin"].mode == 0o440
    assert b"Suites: trixie" in files["/etc/apt/sources.list.d/debian.sources"].data
    assert "set -eu" in PREPARE


def test_staged_files_have_their_modes(tmp_path: Path) -> None:
    stage_files(tmp_path, {"/etc/a/b": FileCopy(b"x", 0o440), "/usr/bin/c": FileCopy(b"y", 0o755)})
    assert (tmp_path / "etc/a/b").stat().st_mode & 0o777 == 0o440
    assert (tmp_path / "usr/bin/c").stat().st_mode & 0o777 == 0o755


def test_layer_script_stops_at_the_first_failure() -> None:
    script = layer_script(Path("/b"), Path("/u"), Path("/w"), Path("/s"), Path("/m"))
    assert script.startswith("set -eu\n")
    assert "lowerdir=/b,upperdir=/u,workdir=/w" in script
