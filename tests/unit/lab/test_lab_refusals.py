import json
from pathlib import Path

import pytest

from lab import cli, hosts, preflight
from lab.apt_config import DEBIAN_KEYRING
from lab.errors import LabError
from lab.inventory import render_known_hosts
from lab.plan import Host
from lab.state import State, render_state


def test_without_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert cli.main(["up"]) == 1
    err = capsys.readouterr().err
    assert "`lab up` needs root" in err
    assert "why: it makes mounts" in err
    assert "fix: sudo" in err


def test_missing_packages_are_named_once_with_the_command(tmp_path: Path) -> None:
    missing = preflight.missing_packages(path=str(tmp_path), root=tmp_path)
    assert missing.count("openssh-client") == 1
    assert "systemd-container" in missing
    assert "debian-archive-keyring" in missing
    with pytest.raises(LabError) as caught:
        preflight.refuse_missing(["mmdebstrap", "nftables"])
    assert "not installed: mmdebstrap nftables" in str(caught.value)
    assert "apt-get install --no-install-recommends mmdebstrap nftables" in caught.value.fix
    preflight.refuse_missing([])


def test_programs_that_are_there_are_not_missing(tmp_path: Path) -> None:
    for name in preflight.PROGRAMS:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    keyring = tmp_path / DEBIAN_KEYRING.lstrip("/")
    keyring.parent.mkdir(parents=True)
    keyring.touch()
    assert preflight.missing_packages(path=str(tmp_path), root=tmp_path) == []


def test_no_apt_get_no_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_a, **_k: None)
    with pytest.raises(LabError, match="cannot install its packages"):
        preflight.install_packages(["nftables"])
    preflight.install_packages([])


MOUNTS = """\
overlay / overlay rw 0 0
/dev/sda1 /var ext4 rw 0 0
srv:/x /var/lib/nfs nfs4 rw 0 0
"""


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/var/lib/fleet-lab", "ext4"),
        ("/var/lib/nfs/lab", "nfs4"),
        ("/var/lib/nfsx", "ext4"),
        ("/home", "overlay"),
    ],
)
def test_file_system_of_a_directory(directory: str, kind: str) -> None:
    assert preflight.filesystem_of(Path(directory), MOUNTS) == kind


@pytest.mark.parametrize("kind", ["overlay", "nfs4", "fuse.sshfs"])
def test_file_systems_that_cannot_hold_an_overlay(kind: str) -> None:
    with pytest.raises(LabError, match="FLEET_LAB_DIR"):
        preflight.refuse_filesystem(Path("/x"), kind)


def test_a_full_disk_is_seen_before_the_bootstrap() -> None:
    with pytest.raises(LabError, match=r"0\.5 GiB are free"):
        preflight.refuse_full_disk(Path("/x"), 512 * 1024**2)
    preflight.refuse_full_disk(Path("/x"), 3 * 1024**3)


@pytest.fixture
def empty_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEET_LAB_DIR", str(tmp_path))
    return tmp_path


def test_status_of_a_lab_that_is_down(empty_lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert cli.main(["status"]) == 0
    assert "the lab is down" in capsys.readouterr().out


def test_an_unknown_gpu_state_lists_the_known(
    empty_lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gpu", "gpu1", "melted"]) == 1
    assert "no-driver, mismatch" in capsys.readouterr().err
    state = State(hosts={"gpu1": Host("gpu1", "bookworm", ("lab",))})
    (empty_lab / "state.json").write_text(render_state(state))
    assert cli.main(["gpu", "gpu1"]) == 0
    assert "a card has fallen off the bus" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["ssh", "nope"], ["gpu", "nope"]])
def test_an_unknown_host(
    empty_lab: Path, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    assert cli.main(argv) == 1
    assert "there is no lab host 'nope'\n  why: the lab is down" in capsys.readouterr().err


def test_a_broken_state_file_is_no_traceback(
    empty_lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (empty_lab / "state.json").write_text("{")
    assert cli.main(["status"]) == 1
    assert f"{empty_lab}/state.json cannot be read" in capsys.readouterr().err


def test_remote_words_are_quoted(empty_lab: Path) -> None:
    assert hosts.ssh_command("gpu1", ["sh", "-c", "echo $HOME"]) == [
        "ssh",
        "-F",
        f"{empty_lab}/ssh_config",
        "gpu1",
        "--",
        "sh -c 'echo $HOME'",
    ]


def test_a_host_that_died_is_told_with_its_last_words(empty_lab: Path) -> None:
    (empty_lab / "logs").mkdir()
    (empty_lab / "logs" / "gpu1.console.log").write_text("mount: no such device\n")
    with pytest.raises(LabError, match="gpu1 is off") as caught:
        hosts.raise_no_ssh("gpu1", "no answer on port 22", 3.1, died=True)
    assert "mount: no such device" in caught.value.why
    assert "lab boot gpu1" in caught.value.fix


def test_known_hosts_have_address_and_name() -> None:
    host = Host("gpu1", "bookworm", ("lab",))
    line = render_known_hosts([host], {"gpu1": "ssh-ed25519 AAAA gpu1\n"})
    assert line == "10.213.77.10,gpu1 ssh-ed25519 AAAA\n"


def test_down_works_on_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(preflight, "missing_packages", list)
    monkeypatch.setattr(preflight, "filesystem_of", lambda *_: "ext4")
    full = type("usage", (), {"free": 0})
    monkeypatch.setattr("shutil.disk_usage", lambda _path: full)
    preflight.check_machine("down", tmp_path, install=False)
    with pytest.raises(LabError, match="too little space"):
        preflight.check_machine("up", tmp_path, install=False)
