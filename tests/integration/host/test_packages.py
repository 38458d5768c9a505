"""What a run says when apt cannot install: the script that a host's shell gets, with the real
apt-get on sources of the test's own, and what its output is told as."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.operations import packages
from pyinfra_deploy.planning.package_failures import package_failure

if TYPE_CHECKING:
    from pathlib import Path

DPKG = "#!/bin/sh\nexit 0\n"
# apt's own words on a disk that is full (apt 2.6, apt-private/private-install.cc; dpkg 1.21).
FULL = """#!/bin/sh
case "$*" in *install*) ;; *) exit 0;; esac
echo 'Unpacking nginx-common (1.22.1-9) ...'
echo "dpkg: error processing archive /var/cache/apt/archives/nginx.deb (--unpack):" >&2
echo " cannot copy extracted data for './usr/sbin/nginx' to '/usr/sbin/nginx.dpkg-new': failed to \
write (No space left on device)" >&2
echo 'E: Sub-process /usr/bin/dpkg returned an error code (1)' >&2
exit 100
"""


class Apt:
    """A host's package programs: the real apt-get, with everything of its below a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stamp = directory / "periodic/stamp"
        for name in ("bin", "lists/partial", "cache/archives/partial", "state"):
            (directory / name).mkdir(parents=True)
        (directory / "state/status").touch()
        self.put("dpkg", DPKG)
        settings = {
            "Dir::Etc::sourcelist": directory / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State": directory / "state",
            "Dir::State::lists": directory / "lists",
            "Dir::State::status": directory / "state/status",
            "Dir::Cache": directory / "cache",
            "Acquire::Retries": 0,
            "APT::Sandbox::User": "",
        }
        lines = [f'{key} "{value}";\n' for key, value in settings.items()]
        (directory / "apt.conf").write_text("".join(lines))
        self.source(f"file:{directory}/repository")

    def put(self, name: str, text: str) -> None:
        (self.directory / "bin" / name).write_text(text)
        (self.directory / "bin" / name).chmod(0o755)

    def source(self, address: str) -> None:
        (self.directory / "sources.list").write_text(f"deb [trusted=yes] {address} ./\n")

    def install(self, *names: str) -> tuple[int, dict[str, Any]]:
        done = subprocess.run(
            ["sh", "-c", packages.script(names, str(self.stamp))],
            env={
                "PATH": f"{self.directory}/bin:{os.environ['PATH']}",
                "APT_CONFIG": str(self.directory / "apt.conf"),
            },
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        return done.returncode, package_failure(names, done.stdout.splitlines())


@pytest.fixture
def apt(tmp_path: Path) -> Apt:
    if shutil.which("apt-get") is None:
        pytest.skip("apt-get is not here: this is no Debian")
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository/Packages").write_text(
        "Package: there\nVersion: 1\nArchitecture: all\nFilename: ./there.deb\nSize: 10\n"
        f"SHA256: {'0' * 64}\nMaintainer: x <x@x>\nDescription: x\n\n"
        "Package: needy\nVersion: 1\nArchitecture: all\nFilename: ./needy.deb\nSize: 10\n"
        f"SHA256: {'0' * 64}\nMaintainer: x <x@x>\nDepends: absent\nDescription: x\n"
    )
    return Apt(tmp_path)


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def test_a_mirror_that_is_gone(apt: Apt) -> None:
    """Without lists apt says only that it knows no such package."""
    apt.source(f"http://127.0.0.1:{closed_port()}")
    code, told = apt.install("nginx")
    assert code == 100
    assert told["what"] == "nginx could not be installed"
    assert told["why"].startswith("a package mirror of the host cannot be reached")
    assert "proxy" in told["fix"]
    assert "run the same command again" in told["fix"]
    assert any("Could not connect to 127.0.0.1" in line for line in told["detail"])
    assert told["detail"][-1] == "E: Unable to locate package nginx"
    assert not apt.stamp.exists(), "the lists are not fresh"


def test_a_mirror_that_goes_after_its_lists_were_read(apt: Apt) -> None:
    code, told = apt.install("there")  # there is no there.deb
    assert code == 100
    assert told["why"].startswith("a package mirror")
    assert any(line.startswith("E: Failed to fetch") for line in told["detail"])
    assert apt.stamp.exists()


def test_a_package_that_no_source_has(apt: Apt) -> None:
    code, told = apt.install("nowhere", "there")
    assert code == 100
    assert told["what"] == "nowhere, there could not be installed"
    assert told["why"] == "the host's package sources do not have it."
    assert "apt-cache policy" in told["fix"]
    assert told["detail"] == ["E: Unable to locate package nowhere"]


def test_a_package_that_does_not_fit(apt: Apt) -> None:
    code, told = apt.install("needy")
    assert code == 100
    assert "does not fit together" in told["why"]
    assert any("absent" in line for line in told["detail"])


def test_another_package_manager_at_work(apt: Apt) -> None:
    with (apt.directory / "cache/archives/lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        code, told = apt.install("there")
    assert code == 100
    assert told["why"].startswith("another package manager is at work")
    assert any(f"held by process {os.getpid()}" in line for line in told["detail"])


def test_a_full_disk(apt: Apt) -> None:
    apt.put("apt-get", FULL)
    code, told = apt.install("nginx")
    assert code == 100
    assert told["why"] == "the host's disk is full."
    assert "df -h" in told["fix"]
    assert told["detail"][-1] == "E: Sub-process /usr/bin/dpkg returned an error code (1)"


def test_fresh_lists_are_not_read_again(apt: Apt) -> None:
    apt.install("there")
    apt.source(f"http://127.0.0.1:{closed_port()}")
    apt.stamp.touch()
    code, told = apt.install("there")
    assert code == 100
    assert "127.0.0.1" not in "".join(told["detail"])


def test_what_is_not_known_is_told_in_apts_words() -> None:
    told = package_failure(["nginx"], ["Reading package lists...", "E: Something new", ""])
    assert told["why"] == "apt-get failed, in its own words below."
    assert told["detail"] == ["E: Something new"]
    assert package_failure(["nginx"], ["Killed"])["detail"] == ["Killed"]
