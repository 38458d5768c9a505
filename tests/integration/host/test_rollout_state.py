"""What a rollout leaves on its hosts: the lock, how far it is, a drain by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import (
    engine,
    events,
    gateway_service,
    golive,
    hold,
    lease,
    release,
    rollout,
    service,
    unjudged,
)
from fleet_host.errors import HostError
from fleet_host.status import Progress

if TYPE_CHECKING:
    from tests.fakes.engine_host import FakeHost


def lease_of(run: str, **more: Any) -> dict[str, Any]:
    return {
        "owner": "ada@desk", "machine": "desk:m:b", "run": run, "pid": 1, "pid_start": 1,
        "ttl_seconds": 900, "generation_seen": None, **more,
    }  # fmt: skip


def take(run: str = "p1", identity: str = "ro1", **more: Any) -> dict[str, Any]:
    document = {"id": identity, "kind": "rollout", "hosts": ["gpu01"]}
    return rollout.take({"lease": lease_of(run, **more), "rollout": document, "release": "r2"})


def whats() -> list[str]:
    return [event["what"] for event in events.tail({"lines": 99})["events"]]


def test_a_host_is_taken_noted_and_given_back(host: FakeHost) -> None:
    assert take()["again"] is False
    seen = rollout.status({"engine": "main"})
    assert (seen["rollout"]["id"], seen["rollout"]["state"], seen["live"]) == (
        "ro1", "running", True,
    )  # fmt: skip
    ended = rollout.end({"run": "p1", "id": "ro1", "result": "live", "release": "r2"})
    assert ended == {"released": True, "ended": True}
    seen = rollout.status({})
    assert (seen["rollout"]["state"], seen["rollout"]["result"]) == ("ended", "live")
    assert (seen["lease"], seen["engine"]) == (None, None)
    assert whats() == ["rollout began", "rollout ended"]
    last = events.tail({"lines": 1})["events"][0]
    assert (last["who"], last["rollout"], last["release"]) == ("ada@desk", "ro1", "r2")


def test_a_second_operator_is_told_by_whom_and_nothing_is_written(host: FakeHost) -> None:
    take()
    with pytest.raises(HostError, match="another run is at work") as caught:
        take("p2", "ro2", owner="bob@other", machine="other:m:b")
    assert "ada@desk" in caught.value.why
    assert (rollout.read() or {})["id"] == "ro1"


def test_a_killed_rollout_is_gone_on_with_from_the_same_machine(host: FakeHost) -> None:
    take()
    answer = take("p2", steal_run="p1")
    assert (answer["again"], answer["taken_over"]) == (True, "p1")
    assert whats()[-1] == "rollout goes on"
    assert rollout.status({})["lease"]["run"] == "p2"
    # What the dead one may still have sent changes nothing of it.
    assert rollout.end({"run": "p1", "id": "other", "result": "live"}) == {
        "released": False, "ended": False,
    }  # fmt: skip


def test_renewing_is_no_event(host: FakeHost) -> None:
    take()
    take()
    assert whats() == ["rollout began"]


def test_a_plan_that_is_stale_takes_nothing(host: FakeHost) -> None:
    lease.acquire(lease_of("x"))
    lease.release({"run": "x"})
    with pytest.raises(HostError, match="has changed since it was planned"):
        take(generation_seen=0)
    assert rollout.read() is None


def test_a_lock_is_taken_away_by_its_name_only(host: FakeHost) -> None:
    take()
    assert rollout.unlock({"run": "p9", "who": "bob"}) == {"released": False}
    assert rollout.unlock({"run": "p1", "who": "bob"}) == {"released": True}
    last = events.tail({"lines": 1})["events"][0]
    assert (last["what"], last["who"], last["from_owner"]) == (
        "lease taken away", "bob", "ada@desk",
    )  # fmt: skip
    assert rollout.status({})["live"] is False


def test_the_engine_is_told_with_what_it_runs_and_how_its_last_go_live_ended(
    host: FakeHost,
) -> None:
    release.stage(host.release_request("r1"))
    golive.run(host.golive_spec("r1"), Progress(None))
    hold.begin({"engine": "main", "kept": "r1", "rejected": ["r2"], "who": "ada", "why": "w"})
    seen = rollout.status({"engine": "main"})["engine"]
    assert (seen["current"], seen["started"], seen["active"], seen["golive_active"]) == (
        "r1", "r1", "active", "inactive",
    )  # fmt: skip
    assert (seen["golive"]["phase"], seen["hold"]["kept"]) == ("done", "r1")
    kept = service.kept_releases({"engine": "main"})
    assert (kept["current"], list(kept["releases"])) == ("r1", ["r1"])
    place = host.home / "releases/r1"
    assert kept["releases"]["r1"]["staged"] == (place / "release.json").stat().st_mtime


def drain(**more: Any) -> dict[str, Any]:
    return service.drain({"engine": "main", "by": "ada", "reason": "a fan", **more})


def test_a_host_is_drained_by_hand_and_served_from_again(host: FakeHost) -> None:
    release.stage(host.release_request("r1"))
    golive.run(host.golive_spec("r1"), Progress(None))
    host.load.write_text("2.0")
    answer = drain()
    assert (answer["changed"], answer["running"], answer["drain"]["by"]) == (True, 2.0, "ada")
    host.load.write_text("0.0")
    assert drain(wait_seconds=60) == {**answer, "changed": False, "running": 0.0}
    # A go-live leaves it.
    release.stage(host.release_request("r2"))
    golive.run(host.golive_spec("r2"), Progress(None))
    assert host.flag.exists()
    assert service.undrain({"engine": "main", "by": "ada"})["changed"]
    assert service.undrain({"engine": "main", "by": "ada"}) == {"changed": False, "drain": None}
    assert [what for what in whats() if "drained" in what] == ["drained", "undrained"]


def test_what_a_go_live_drains_is_left_to_it(host: FakeHost) -> None:
    engine.raise_drain_flag("main", engine.DRAINED_BY_GO_LIVE, "x")
    (host.unit / "golive-state").write_text("active")
    with pytest.raises(HostError, match="is being switched"):
        service.undrain({"engine": "main", "by": "ada"})
    # An operator's drain takes the place of the go-live's, which would end by itself.
    assert drain()["changed"]
    unjudged.ended({"engine": "main"})
    assert json.loads(host.flag.read_text())["by"] == "ada"
    (host.unit / "golive-state").write_text("inactive")
    assert service.undrain({"engine": "main", "by": "ada"})["changed"]


def test_logs_are_of_units_that_are_known(host: FakeHost) -> None:
    (host.unit / "log").write_text("one\ntwo\n")
    answer = service.logs({"engine": "main", "lines": 5})
    assert (answer["unit"], set(answer["lines"])) == ("llm-engine@main.service", {"one", "two"})
    with pytest.raises(HostError, match="no log of 'sshd'"):
        service.logs({"engine": "main", "of": "sshd"})


def test_a_host_says_how_its_gateway_is(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rollout.status({})["gateway"] is None
    assert rollout.status({"gateway": True})["gateway"] == {
        "current": None, "service": "inactive", "nginx": "inactive", "answers": False,
    }  # fmt: skip

    def loaded(unit: str) -> dict[str, str]:
        if unit == "nginx.service":
            raise HostError("x", "y", "z")
        return {"ActiveState": "active"}

    monkeypatch.setattr(engine, "unit_state", loaded)
    monkeypatch.setattr(gateway_service, "answers", lambda: True)
    seen = rollout.status({"gateway": True})["gateway"]
    assert (seen["service"], seen["nginx"], seen["answers"]) == ("active", "absent", True)
