"""Which environment a new worker starts from, and stays in."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from llm_gateway.supervise import worker_command

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_worker_stays_in_the_environment_that_current_named_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it imports later must be of the same version, also when `current` has moved on."""
    (tmp_path / "python3").touch()
    for name in ("one", "two"):
        (tmp_path / name / "bin").mkdir(parents=True)
        # As in an environment: a link out of it, which is not to be followed.
        (tmp_path / name / "bin/python").symlink_to(tmp_path / "python3")
        (tmp_path / name / "app").mkdir()
    current = tmp_path / "current"
    current.symlink_to("one")
    monkeypatch.setattr(sys, "executable", str(current / "bin/python"))
    monkeypatch.setenv("PYTHONPATH", str(current / "app"))
    for name in ("one", "two"):
        current.unlink()
        current.symlink_to(name)
        command, environment = worker_command()
        assert command == [str(tmp_path / name / "bin/python"), "-m", "llm_gateway", "--worker"]
        assert environment["PYTHONPATH"] == str(tmp_path / name / "app")
