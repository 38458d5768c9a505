"""What the pull tests share: a hub, a client and a target directory."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import hub, outage, pull
from fleet_host.status import Progress

from tests.fakes.model_hub import OWNER_NAME, FakeHub, serve

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class PullWorld:
    hub: FakeHub
    target: Path
    plan: Path
    program: Path

    @property
    def final(self) -> Path:
        return self.target / "Qwen--Tiny" / "master"

    @property
    def staging(self) -> Path:
        return self.target / ".incoming" / "Qwen--Tiny" / "master"

    def spec(self, **changes: Any) -> dict[str, Any]:
        return {
            "model_id": OWNER_NAME,
            "revision": "master",
            "endpoint": self.hub.endpoint,
            "hub": "modelscope",
            "target": str(self.target),
            "client": str(self.program),
            "files_at_once": 2,
            "file_timeout_seconds": 60,
            "stall_timeout_seconds": 30,
            "token_file": None,
            **changes,
        }

    def client_does(self, mode: str, **details: Any) -> None:
        self.plan.write_text(json.dumps({"mode": mode, **details}))

    def starts(self) -> list[dict[str, Any]]:
        log = Path(f"{self.plan}.starts")
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def pull(self, **changes: Any) -> dict[str, Any]:
        return pull.run(self.spec(**changes), Progress(None))

    def assert_whole(self) -> None:
        found = {
            path.relative_to(self.final).as_posix(): path.read_bytes()
            for path in self.final.rglob("*")
            if path.is_file()
        }
        assert found == self.hub.files


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PullWorld]:
    fake = FakeHub()
    server = serve(fake)
    program = tmp_path / "modelscope"
    script = Path(__file__).with_name("model_client.py")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {script} "$@"\n')
    program.chmod(0o755)
    target = tmp_path / "models"
    target.mkdir()
    plan = tmp_path / "plan.json"
    monkeypatch.setenv("FLEET_LLM_ROOT", str(tmp_path))
    monkeypatch.setenv("FAKE_CLIENT", str(plan))
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "somebody-elses")
    monkeypatch.setattr(hub, "RETRY_DELAYS_SECONDS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(outage, "FIRST_PAUSE_SECONDS", 0.0)
    made = PullWorld(fake, target, plan, program)
    made.client_does("honest")
    yield made
    server.shutdown()
    server.server_close()
