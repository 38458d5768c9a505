"""`gateway activate` in mode full: a hand-over where it runs already, else a start; and back."""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import gateway, gateway_drain, gateway_service, probe, systemctl
from fleet_host.errors import HostError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.engine_host import FakeHost

UNIT, SOCKET = "llm-gateway.service", "llm-gateway.socket"
TEXT, OTHER, BAD = '{"a": 1}\n', '{"a": 2}\n', '{"bad": 1}\n'


class Service:
    """systemd with the two units, and the service, which takes up its configuration by itself."""

    def __init__(self) -> None:
        self.active: set[str] = set()
        self.failed: set[str] = set()
        self.shape = "full"
        self.calls: list[str] = []
        self.clock = 0.0
        self.environment: str | None = None
        self.configuration: str | None = None
        self.bad_environments: set[str] = set()
        self.outstanding = 0
        self.asked_while_busy = 0
        self.system = "running"

    def call(self, arguments: list[str], timeout_seconds: float = 0.0) -> str:
        self.calls.append(" ".join(arguments))
        verb, units = arguments[0], arguments[1:]
        if verb == "reset-failed":
            # systemd forgets a unit that is inactive: there is nothing to reset then.
            assert set(units) <= self.active | self.failed, f"{units} not loaded"
            self.failed -= set(units)
        if verb in ("start", "restart"):
            assert not set(units) & self.failed, "start request repeated too quickly"
        if verb == "stop":
            self.active -= set(units)
        if verb in ("start", "restart"):
            assert not (SOCKET in units and UNIT in self.active), "systemd refuses this socket"
            self.active |= set(units)
        if UNIT in units and verb in ("start", "restart", "reload"):
            self._start(reloaded=verb == "reload")
        return ""

    def _start(self, *, reloaded: bool) -> None:
        linked = gateway.linked()
        if linked in self.bad_environments:
            if not reloaded:
                self.active.discard(UNIT)
            return
        self.environment = linked
        if not reloaded:
            os.environ["LLM_GATEWAY_SHAPE"] = self.shape
            if self.shape == "direct":
                del os.environ["LLM_GATEWAY_SHAPE"]
            gateway.started({})

    def show(self, unit: str, properties: list[str]) -> dict[str, str]:
        state = "failed" if unit in self.failed else "inactive"
        known = {"ActiveState": "active" if unit in self.active else state,
                 "Result": "success", "InvocationID": "i1", "SystemState": self.system}  # fmt: skip
        return {name: known[name] for name in properties}

    def request(self, path: Path, method: str, target: str, **_more: Any) -> tuple[int, bytes]:
        if UNIT not in self.active:
            raise probe.NotReadyError("GET /ready: ConnectionRefusedError")
        if self.shape == "direct" and path.name == "auth.sock":
            return 200, b"{}"
        if self.outstanding:
            self.asked_while_busy += 1
            self.outstanding -= 1
        text = gateway.configuration_path().read_text()
        if "bad" not in text:
            self.configuration = hashlib.sha256(text.encode()).hexdigest()
        document = {
            "ready": False,  # no engine serves: no matter here
            "keys": 1,
            "environment": self.environment,
            "configuration": self.configuration,
            "configuration_problem": "bad is not known" if "bad" in text else None,
            "backends": {"main": {"outstanding": self.outstanding}},
        }
        return 503, json.dumps(document).encode()


@pytest.fixture
def service(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> Service:
    fake = Service()
    for name in ("call", "show"):
        monkeypatch.setattr(systemctl, name, getattr(fake, name))
    monkeypatch.setattr(systemctl, "journal_tail", lambda invocation: [f"journal of {invocation}"])
    monkeypatch.setattr(probe, "request", fake.request)
    monkeypatch.setattr(gateway, "reader_gid", os.getgid)
    monkeypatch.setenv("LLM_GATEWAY_SHAPE", "full")

    def sleep(seconds: float) -> None:
        fake.clock += seconds

    monkeypatch.setattr(time, "monotonic", lambda: fake.clock)
    monkeypatch.setattr(time, "sleep", sleep)
    gateway.home().mkdir(parents=True)
    (host.root / "run/llm-gateway").mkdir(parents=True)
    for name in ("one", "two"):
        record = host.llm_root / "tools" / name / ".fleet-complete.json"
        record.parent.mkdir(parents=True)
        record.write_text("{}")
    return fake


def activate(name: str, text: str | None = TEXT, shape: str = "full") -> dict[str, Any]:
    request = {"environment": name, "unit": UNIT, "shape": shape, "stop_seconds": 10}
    return gateway.activate({**request, "configuration": text})


def started() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gateway.started_path().read_text())
    return found


def test_the_first_start_is_on_systemd_s_socket(service: Service) -> None:
    assert activate("one")["handed_over"] is False
    assert service.active == {UNIT, SOCKET}
    assert service.calls.index(f"start {SOCKET}") < service.calls.index(f"start {UNIT}")
    assert f"enable --quiet {UNIT} {SOCKET}" in service.calls
    assert gateway.configuration_path().read_text() == TEXT
    assert gateway.configuration_path().stat().st_mode & 0o777 == 0o640
    # Nginx of mode direct still finds who answers /auth.
    assert gateway_service.auth_socket().readlink().name == "http.sock"
    assert started() == {"environment": "one", "invocation": started()["invocation"],
                         "shape": "full"}  # fmt: skip


def test_one_that_failed_too_often_is_reset_before_it_starts(service: Service) -> None:
    service.failed = {UNIT}
    activate("one")
    assert service.active == {UNIT, SOCKET}


def test_another_environment_is_handed_over_to_and_nothing_stops(service: Service) -> None:
    activate("one")
    service.calls.clear()
    assert activate("two") == {
        "environment": "two", "previous": "one", "handed_over": True, "former": TEXT,
    }  # fmt: skip
    assert service.calls == [f"reload {UNIT}", f"enable --quiet {UNIT} {SOCKET}"]
    assert started()["environment"] == "two"
    assert started()["shape"] == "full"


def test_a_configuration_is_taken_up_without_any_word_to_systemd(service: Service) -> None:
    activate("one")
    service.calls.clear()
    assert activate("one", OTHER)["handed_over"] is True
    assert service.calls == [f"enable --quiet {UNIT} {SOCKET}"]
    assert gateway.configuration_path().read_text() == OTHER


def test_a_configuration_that_the_service_refuses_is_taken_back(
    service: Service, host: FakeHost
) -> None:
    activate("one")
    with pytest.raises(HostError) as caught:
        activate("one", BAD)
    assert "it refuses its configuration: bad is not known" in caught.value.why
    assert service.clock < 1
    assert gateway.configuration_path().read_text() == TEXT
    assert service.active == {UNIT, SOCKET}
    assert '"gateway reverted"' in (host.llm_root / "state/events.jsonl").read_text()


def test_a_hand_over_that_fails_leaves_the_old_one_serving(service: Service) -> None:
    activate("one")
    service.bad_environments = {"two"}
    with pytest.raises(HostError) as caught:
        activate("two", OTHER)
    assert "environment one still runs" in caught.value.why
    assert gateway.linked() == "one"
    assert gateway.configuration_path().read_text() == TEXT
    assert started()["environment"] == "one"
    assert f"stop {UNIT}" not in service.calls[1:]


def test_another_shape_is_another_start(service: Service) -> None:
    activate("one")
    service.calls.clear()
    service.shape = "full-remote"
    assert activate("one", shape="full-remote")["handed_over"] is False
    assert service.calls[0] == f"stop {UNIT}"
    assert started()["shape"] == "full-remote"


def test_to_direct_and_back(service: Service) -> None:
    activate("one")
    service.shape, service.outstanding = "direct", 4
    service.calls.clear()
    assert activate("one", None, "direct")["handed_over"] is False
    # Its last answers were waited for, while it still told Nginx about keys.
    assert service.asked_while_busy == 4
    assert service.calls[:2] == [f"disable --quiet {SOCKET}", f"stop {UNIT} {SOCKET}"]
    assert service.active == {UNIT}
    assert not gateway_service.auth_socket().is_symlink()
    assert "shape" not in started()
    service.shape = "full"
    back = activate("one", OTHER)
    # What lies there is of the shape before the last: nothing that could be taken up again.
    assert (back["handed_over"], back["former"]) == (False, None)
    assert service.active == {UNIT, SOCKET}


def test_an_answer_without_end_does_not_hold_a_switch_up_for_ever(service: Service) -> None:
    activate("one")
    service.shape, service.outstanding = "direct", 10**6
    activate("one", None, "direct")
    assert 10 <= service.clock < 11


def configure(text: str | None) -> dict[str, Any]:
    return gateway.configure({"unit": UNIT, "configuration": text, "stop_seconds": 10})


def test_the_way_back_may_be_to_another_environment_too(service: Service) -> None:
    activate("one")
    activate("two", OTHER)
    back = {"unit": UNIT, "configuration": TEXT, "stop_seconds": 10, "environment": "one"}
    assert gateway.configure(back) == {"changed": True, "former": OTHER}
    assert (gateway.linked(), gateway.configuration_path().read_text()) == ("one", TEXT)
    assert service.environment == "one"
    assert gateway.configure(back)["changed"] is False


def test_another_configuration_for_what_runs(service: Service) -> None:
    activate("one")
    service.calls.clear()
    assert configure(OTHER) == {"changed": True, "former": TEXT}
    assert gateway.configuration_path().read_text() == OTHER
    assert (gateway.linked(), started()["shape"]) == ("one", "full")
    assert service.calls == [f"enable --quiet {UNIT} {SOCKET}"]
    service.calls.clear()
    assert configure(OTHER) == {"changed": False, "former": None}
    assert service.calls == []


def test_a_configuration_that_is_refused_leaves_the_one_before(service: Service) -> None:
    activate("one")
    with pytest.raises(HostError, match="did not become ready"):
        configure(BAD)
    assert gateway.configuration_path().read_text() == TEXT


def test_what_has_no_configuration_is_not_given_one(service: Service) -> None:
    nothing = {"changed": False, "former": None}
    assert configure(TEXT) == nothing  # it has never run
    activate("one")
    gateway.started_path().unlink()
    service.calls.clear()
    assert configure(OTHER) == nothing  # not since the boot
    service.shape = "direct"
    activate("one", None, "direct")
    service.calls.clear()
    assert configure(OTHER) == nothing
    assert service.calls == []
    assert gateway.configuration_path().read_text() == TEXT
    with pytest.raises(SpecError):
        configure(None)


@pytest.mark.parametrize(("shape", "text"), [("direct", TEXT), ("full", None), ("odd", TEXT)])
def test_a_shape_fits_its_configuration(service: Service, shape: str, text: str | None) -> None:
    with pytest.raises(SpecError):
        activate("one", text, shape)
    assert service.calls == []


@pytest.mark.parametrize(("system", "drained"), [("stopping", True), ("running", False)])
def test_only_a_shutdown_drains_the_host(
    service: Service, host: FakeHost, system: str, drained: bool
) -> None:
    flag = host.root / "run/llm/drain/_gateway"
    flag.parent.mkdir(parents=True)
    service.system = system
    assert gateway_drain.stopping({}) == {"drained": drained}
    assert flag.exists() is drained
    assert gateway_drain.undrain({}) == {"undrained": drained}
    assert not flag.exists()


def test_what_somebody_has_drained_stays_so(service: Service, host: FakeHost) -> None:
    flag = host.root / "run/llm/drain/_gateway"
    flag.parent.mkdir(parents=True)
    flag.write_text("")
    service.system = "stopping"
    gateway_drain.stopping({})
    assert gateway_drain.undrain({}) == {"undrained": False}
    assert flag.read_text() == ""
