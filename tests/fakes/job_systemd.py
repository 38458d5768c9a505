"""A systemctl that answers as a test says, and a host's directories for the job m1 of kind pull."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

INACTIVE = {"LoadState": "loaded", "ActiveState": "inactive", "Result": "success"}


@dataclass
class FakeSystemd:
    root: Path

    def says(self, **properties: str) -> None:
        lines = [f"{key}={value}" for key, value in {**INACTIVE, **properties}.items()]
        (self.root / "show").write_text("\n".join(lines) + "\n")

    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().splitlines()

    def started(self) -> int:
        return sum("start --no-block" in call for call in self.calls())


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSystemd:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, body in {
        "systemctl": 'echo "$@" >>"$FAKE_SYSTEMD/calls"\ncase "$*" in *" show "*) '
        'cat "$FAKE_SYSTEMD/show";; *) if [ -e "$FAKE_SYSTEMD/fails" ]; then '
        'echo "Failed to start: bus is gone" >&2; exit 1; fi;; esac',
        "journalctl": 'echo "$@" >>"$FAKE_SYSTEMD/calls"\necho "Killed by the test"',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SYSTEMD", str(tmp_path))
    for name in ("llm", "run", "state"):
        monkeypatch.setenv(
            {"llm": "FLEET_LLM_ROOT"}.get(name, f"FLEET_{name.upper()}_ROOT"), str(tmp_path / name)
        )
        (tmp_path / name).mkdir()
    (tmp_path / "llm" / "jobs").mkdir()
    for name in ("run", "state"):
        (tmp_path / name / "llm-pull" / "m1").mkdir(parents=True)
    (tmp_path / "calls").touch()
    made = FakeSystemd(tmp_path)
    made.says()
    return made
