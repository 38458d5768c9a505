"""`host prepare` removes drop-ins of our engines' units, and nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import host as ground
from fleet_host.errors import SpecError

if TYPE_CHECKING:
    from tests.fakes.engine_host import FakeHost

DIRECTORY = "systemd/system/llm-engine@main.service.d"


@pytest.fixture
def request_of(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("systemctl", "systemd-sysusers", "systemd-tmpfiles"):
        program = host.root / "bin" / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)

    def made(*paths: Any) -> dict[str, Any]:
        return {"files": [], "remove": list(paths), "sysusers": "/a", "tmpfiles": "/b"}

    return made


def test_a_drop_in_goes_with_its_directory(host: FakeHost, request_of: Any) -> None:
    drop_in = host.root / "etc" / DIRECTORY / "placement.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[Service]\n")
    path = f"/etc/{DIRECTORY}/placement.conf"
    assert ground.prepare(request_of(path))["removed"] == [path]
    assert not drop_in.parent.exists()
    assert drop_in.parent.parent.is_dir()
    (event,) = (host.llm_root / "state/events.jsonl").read_text().splitlines()
    assert json.loads(event)["what"] == "files removed"
    assert ground.prepare(request_of(path))["removed"] == []


def test_an_operators_drop_in_stays(host: FakeHost, request_of: Any) -> None:
    own = host.root / "etc" / DIRECTORY / "override.conf"
    own.parent.mkdir(parents=True)
    own.write_text("[Service]\n")
    (own.parent / "placement.conf").write_text("[Service]\n")
    ground.prepare(request_of(f"/etc/{DIRECTORY}/placement.conf"))
    assert own.read_text() == "[Service]\n"
    assert [path.name for path in own.parent.iterdir()] == ["override.conf"]


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/etc/systemd/system/llm-engine@.service",
        "/etc/systemd/system/nginx.service.d/placement.conf",
        "/etc/systemd/system/llm-engine@main.service.d/../nginx.service.d/placement.conf",
        "/etc/systemd/system/llm-engine@a/../../x.service.d/placement.conf",
        "/etc/systemd/system/llm-engine@main.service.d/placement.conf\n",
        "/run/systemd/system/llm-engine@main.service.d/placement.conf",
        "etc/systemd/system/llm-engine@main.service.d/placement.conf",
        7,
    ],
)
def test_nothing_else_is_removed(request_of: Any, path: Any) -> None:
    with pytest.raises(SpecError):
        ground.prepare(request_of(path))
