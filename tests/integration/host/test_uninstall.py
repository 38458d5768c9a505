"""Everything of ours goes, and nothing else; models and the event log stay unless asked."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import events, lease, uninstall
from fleet_host.errors import HostError

from tests.fakes.engine_host import put_program

if TYPE_CHECKING:
    from tests.fakes.engine_host import FakeHost

SYSTEMCTL = r"""
echo "$*" >> "$FAKE_UNIT/calls"
case "$*" in
*list-units*) echo "llm-engine@main.service loaded active running vLLM" ;;
*" show "*) echo "ActiveState=$(cat "$FAKE_UNIT/state" 2>/dev/null || echo inactive)" ;;
esac
"""

# Every unit that a deploy may have put there.
UNITS = Path(__file__).resolve().parents[3] / "templates" / "units"


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def ours(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What a deploy leaves, on a host whose programs only note that they were called."""
    put_program(host.root / "bin", "systemctl", SYSTEMCTL)
    for name in ("userdel", "groupdel"):
        put_program(host.root / "bin", name, f'echo "{name} $*" >> "$FAKE_UNIT/calls"')
    monkeypatch.setenv("FLEET_CACHE_ROOT", str(host.root / "cache"))
    monkeypatch.setenv("FLEET_LOG_ROOT", str(host.root / "log"))
    etc = host.root / "etc"
    nginx = write(etc / "nginx/conf.d/llm-gateway.conf", "server {}")
    digest = hashlib.sha256(b"server {}").hexdigest()
    state = {"files": {"/etc/nginx/conf.d/llm-gateway.conf": digest}}
    write(host.llm_root / "state/nginx.json", json.dumps(state))
    events.record("deployed", "ada")
    return [
        nginx,
        *(write(etc / "systemd/system" / template.stem) for template in UNITS.glob("*.j2")),
        write(etc / "systemd/system/multi-user.target.wants/llm-engine@main.service"),
        write(etc / "systemd/system/llm-engine@main.service.d/gpus.conf"),
        write(etc / "sysusers.d/llm-fleet.conf"),
        write(etc / "tmpfiles.d/llm-fleet.conf"),
        write(etc / "sysctl.d/99-llm-map-count.conf"),
        write(etc / "llm/tls/server.key"),
        write(etc / "llm-gateway/mtls/host.key"),
        write(host.root / "run/llm/drain/main"),
        write(host.root / "state/llm-golive/main/result.json"),
        write(host.root / "cache/llm-engine/main/x"),
        write(host.root / "log/llm/main.log"),
        write(host.llm_root / "bin/fleet-host"),
        write(host.llm_root / "engines/main/golive.json"),
        host.llm_root / "state/nginx.json",
    ]


@pytest.fixture
def theirs(host: FakeHost) -> list[Path]:
    return [
        write(host.root / "etc/systemd/system/other.service"),
        write(host.root / "etc/nginx/conf.d/site.conf"),
        write(host.root / "run/llmnr"),
        write(host.root / "state/other/x"),
    ]


def asked(**more: Any) -> dict[str, Any]:
    taken = {"owner": "ada", "machine": "m:i:b", "run": "u", "pid": 1, "pid_start": 1,
             "ttl_seconds": 900, "generation_seen": None}  # fmt: skip
    return {"lease": taken, **more}


def test_what_would_go_is_told_and_nothing_is_touched(
    host: FakeHost, ours: list[Path], theirs: list[Path]
) -> None:
    told = uninstall.run(asked(dry=True))
    assert told["units"] == ["llm-engine@main.service"]
    for path in ours:
        assert path.exists()
        assert any(path.is_relative_to(one) for one in told["paths"]), path
    assert not any(path.is_relative_to(one) for path in theirs for one in told["paths"])
    assert lease.status({})["lease"] is None


def test_everything_of_ours_goes_and_the_models_stay(
    host: FakeHost, ours: list[Path], theirs: list[Path]
) -> None:
    told = uninstall.run(asked())
    assert [path for path in ours if path.exists()] == []
    assert [path for path in theirs if not path.exists()] == []
    assert (host.llm_root / "models/o--m/master/weights").exists()
    log = events.tail({"lines": 9})["events"]
    assert [event["what"] for event in log] == ["deployed", "uninstalled"]
    assert any("the models" in text for text in told["kept"])
    calls = (host.unit / "calls").read_text()
    assert "stop llm-engine@main.service" in calls
    assert "userdel llm-gateway" in calls
    assert "userdel llm-build" not in calls
    uninstall.run(asked())  # a second time finds nothing


def test_with_its_models_nothing_is_left(host: FakeHost, ours: list[Path]) -> None:
    uninstall.run(asked(models=True))
    assert not host.llm_root.exists()
    assert "userdel llm-build" in (host.unit / "calls").read_text()


def test_what_somebody_has_changed_in_nginx_is_theirs(host: FakeHost, ours: list[Path]) -> None:
    ours[0].write_text("server { listen 8443; }")
    told = uninstall.run(asked())
    assert ours[0].exists()
    assert any("changed by hand since" in text for text in told["kept"])


def test_nothing_is_removed_under_what_runs_on(host: FakeHost, ours: list[Path]) -> None:
    (host.unit / "state").write_text("deactivating")
    with pytest.raises(HostError, match="did not stop"):
        uninstall.run(asked())
    assert all(path.exists() for path in ours)


def test_not_while_another_run_is_at_work(host: FakeHost, ours: list[Path]) -> None:
    lease.acquire(asked()["lease"] | {"run": "another"})
    with pytest.raises(HostError, match="another run is at work"):
        uninstall.run(asked())
    assert all(path.exists() for path in ours)
