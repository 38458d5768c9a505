"""The step that installs packages: what a person sees of a failure."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from paramiko import SSHException

from pyinfra_deploy.operations import packages

if TYPE_CHECKING:
    import pytest

    from tests.fakes.pyinfra_host import PyinfraWorld


def test_a_failure_names_host_step_cause_and_next_move(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="pyinfra")
    line = packages.script(["nginx"])
    world.script.says(line, ["fleet: installing", "E: Unable to locate package nginx"])
    assert not world.run(packages.install_packages, packages=["nginx"])
    (sent,) = world.script.sent
    assert sent.command == line
    assert sent.stdin is None
    first, why, fix, detail = [record.getMessage() for record in caplog.records]
    assert "gpu01" in first
    assert "packages: nginx could not be installed" in first
    assert "why: the host's package sources do not have it." in why
    assert "run the same command again" in fix
    assert "| E: Unable to locate package nginx" in detail


def test_a_lost_connection_is_no_failure_of_apt(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.script.says(packages.script(["nginx"]), SSHException("gone"))
    assert not world.run(packages.install_packages, packages=["nginx"])
    assert "packages: the connection to the host was lost" in caplog.text
    assert "Run the same command again" in caplog.text


def test_what_works_says_nothing(world: PyinfraWorld, caplog: pytest.LogCaptureFixture) -> None:
    assert world.run(packages.install_packages, packages=["nginx", "python3-venv"])
    assert "install nginx python3-venv" in world.script.sent[0].command
    assert caplog.text == ""
