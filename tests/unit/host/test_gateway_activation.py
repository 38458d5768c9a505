"""`gateway activate`: the service on another environment, answering, or back on the former one."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import gateway, probe, systemctl
from fleet_host.errors import HostError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.engine_host import FakeHost

UNIT = "llm-gateway.service"


class Service:
    """systemd and the service: `healthy` names the environments that answer /ready with 200."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.healthy: set[str] = set()
        self.answers: dict[str, int] = {}
        self.dead: set[str] = set()
        self.calls: list[str] = []
        self.clock = 0.0

    def call(self, arguments: list[str], timeout_seconds: float = 0.0) -> str:
        self.calls.append(" ".join(arguments))
        return ""

    def show(self, unit: str, properties: list[str]) -> dict[str, str]:
        failed = gateway.linked() in self.dead
        known = {"ActiveState": "failed" if failed else "active", "Result": "exit-code",
                 "InvocationID": "i1"}  # fmt: skip
        return {name: known[name] for name in properties}

    def request(self, path: Path, method: str, target: str, **_more: Any) -> tuple[int, bytes]:
        assert (method, target) == ("GET", "/ready")
        name = str(gateway.linked())
        if name in self.healthy:
            return 200, b""
        if name in self.answers:
            return self.answers[name], b""
        raise probe.NotReadyError("GET /ready: ConnectionRefusedError")


@pytest.fixture
def service(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> Service:
    fake = Service(gateway.home())
    monkeypatch.setattr(systemctl, "call", fake.call)
    monkeypatch.setattr(systemctl, "show", fake.show)
    monkeypatch.setattr(systemctl, "journal_tail", lambda invocation: [f"journal of {invocation}"])
    monkeypatch.setattr(probe, "request", fake.request)

    def sleep(seconds: float) -> None:
        fake.clock += seconds

    monkeypatch.setattr(time, "monotonic", lambda: fake.clock)
    monkeypatch.setattr(time, "sleep", sleep)
    fake.home.mkdir(parents=True)
    for name in ("one", "two"):
        complete(host, name).parent.mkdir(parents=True)
        complete(host, name).write_text("{}")
    return fake


def complete(host: FakeHost, name: str) -> Path:
    """The record without which an environment is none."""
    return host.llm_root / "tools" / name / ".fleet-complete.json"


def activate(name: str) -> dict[str, Any]:
    return gateway.activate({"environment": name, "unit": UNIT})


def refused(name: str) -> HostError:
    with pytest.raises(HostError) as caught:
        activate(name)
    return caught.value


def test_it_is_linked_enabled_and_restarted(service: Service, host: FakeHost) -> None:
    service.healthy = {"one", "two"}
    started = {"handed_over": False, "former": None}
    assert activate("one") == {"environment": "one", "previous": None, **started}
    assert activate("two") == {"environment": "two", "previous": "one", **started}
    assert gateway.linked() == "two"
    assert service.calls[:3] == [
        f"enable --quiet {UNIT}", f"reset-failed {UNIT}", f"restart {UNIT}",
    ]  # fmt: skip
    events = (host.llm_root / "state/events.jsonl").read_text()
    assert events.count('"gateway live"') == 2


def test_one_that_does_not_answer_is_taken_back(service: Service, host: FakeHost) -> None:
    service.healthy = {"one"}
    activate("one")
    error = refused("two")
    assert "did not become ready" in error.what
    assert "ConnectionRefusedError" in error.why
    assert error.detail == ["journal of i1"]
    assert gateway.linked() == "one"
    assert service.calls.count(f"restart {UNIT}") == 3
    assert '"gateway reverted"' in (host.llm_root / "state/events.jsonl").read_text()


def test_one_that_dies_is_not_waited_for(service: Service) -> None:
    service.dead = {"one"}
    assert f"{UNIT} is failed (exit-code)" in refused("one").why
    assert service.clock < 1


def test_one_that_is_not_ready_is_waited_for_half_a_minute(service: Service) -> None:
    service.answers = {"one": 503}
    assert "/ready was answered 503" in refused("one").why
    assert 30 <= service.clock < 31


def test_without_a_former_one_there_is_nothing_to_go_back_to(service: Service) -> None:
    service.dead = {"one"}
    refused("one")
    assert service.calls.count(f"restart {UNIT}") == 1


def test_an_incomplete_environment_is_refused_before_anything_changes(
    service: Service, host: FakeHost
) -> None:
    complete(host, "one").unlink()
    assert "not there in full" in refused("one").what
    assert service.calls == []
    assert gateway.linked() is None


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden"])
def test_a_name_is_one_directorys(service: Service, name: str) -> None:
    with pytest.raises(SpecError):
        activate(name)
    assert service.calls == []


def test_the_unit_notes_what_it_starts(
    service: Service, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INVOCATION_ID", "abc")
    service.healthy = {"one"}
    activate("one")
    path = host.root / "run/llm-gateway/started.json"
    path.parent.mkdir(exist_ok=True)
    gateway.started({})
    assert json.loads(path.read_text()) == {"environment": "one", "invocation": "abc"}
    assert list(path.parent.glob(".*")) == []
