"""The stand-in conda of the hosts' tests: its locks name the packages of its channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet_host import conda_spec

from pyinfra_deploy.operations.packing import ROOT
from pyinfra_deploy.settings.conda_contradictions import python_of_conda_lock
from tests.standin import conda, conda_channel

if TYPE_CHECKING:
    from pathlib import Path


def test_the_locks_are_of_these_channels(tmp_path: Path) -> None:
    """Else: python -m tests.standin.conda_channel"""
    for (name, python), text in conda_channel.make_host_channels(tmp_path).items():
        path = conda_channel.HOST_LOCKS[name, python]
        assert (ROOT / path).read_text() == text
        assert python_of_conda_lock(text) == python
        packages = conda_spec.locked(text, (conda_channel.host_channel(name),))
        assert f"python-{python}.9-0_standin" in packages


def test_the_main_channel_has_terms_and_the_other_none(tmp_path: Path) -> None:
    conda_channel.make_host_channels(tmp_path)
    assert (tmp_path / "main" / "terms.json").exists()
    assert not (tmp_path / "forge" / "terms.json").exists()


def test_it_names_directories_as_conda_does() -> None:
    assert conda.hash_of("https://repo.anaconda.com/pkgs/main").startswith("3c9d068a")


def test_the_installer_holds_the_program_whole() -> None:
    text = conda_channel.installer_text()
    assert conda_channel.PROGRAM.read_text() in text
    assert "PAYLOAD\n" not in text.replace("END-OF-PAYLOAD\n", "")
