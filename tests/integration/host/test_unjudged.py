"""A go-live that is killed leaves nothing serving that it has not judged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from fleet_host import (
    binding,
    durable,
    engine,
    events,
    golive,
    release,
    stopped,
    systemctl,
    unjudged,
)
from fleet_host.status import Progress

from tests.integration.host.test_gates import gates
from tests.integration.host.test_golive import killed_at, started, wait_for

if TYPE_CHECKING:
    from tests.fakes.engine_host import FakeHost

MAIN = {"engine": "main"}
PLACED = "[Service]\nNUMAMask=0\n"


@pytest.fixture
def killed(host: FakeHost) -> FakeHost:
    """r1 serves; the go-live of r2, with another binding, was killed in its gates."""
    for identity, placement in (("r1", ""), ("r2", PLACED)):
        release.stage(host.release_request(identity))
        binding.bind(host.bind(identity, f"{identity}\n", placement))
    golive.run(host.golive_spec("r1"), Progress(None))
    killed_at(host, "r2", "judging", gates=gates(soak_seconds=60))
    assert (host.linked("current"), started(host)) == ("r2", "r2")
    return host


def serves_r1(host: FakeHost) -> None:
    assert (host.linked("current"), host.linked("previous")) == ("r1", None)
    assert not binding.drop_in("main").exists()
    record = host.golive_record()
    assert (record["phase"], record["was"], record["to"]) == ("undone", "judging", "r2")
    last = events.tail({"lines": 1})["events"][0]
    assert (last["what"], last["release"], last["back_to"]) == ("go-live undone", "r2", "r1")


def test_the_end_of_its_unit_goes_back(killed: FakeHost) -> None:
    assert unjudged.ended(MAIN) == {"lowered": True, "back_to": "r1"}
    serves_r1(killed)
    assert started(killed) == "r1"
    assert not killed.flag.exists()
    # The next go-live begins anew, and has r1 to go back to.
    result = golive.run(killed.golive_spec("r2"), Progress(None))
    assert (result["changed"], result["from"]) == (True, "r1")
    assert killed.golive_record()["phase"] == "done"
    assert unjudged.ended(MAIN)["back_to"] is None


def test_after_a_power_cut_the_engine_starts_with_what_served(killed: FakeHost) -> None:
    killed.end_engine()
    killed.flag.unlink()
    assert unjudged.before_start(MAIN) == {"back_to": "r1"}
    serves_r1(killed)
    assert unjudged.before_start(MAIN) == {"back_to": None}


def test_a_go_live_at_work_starts_what_it_is_trying(killed: FakeHost) -> None:
    (killed.unit / "golive-state").write_text("active")
    assert unjudged.before_start(MAIN) == {"back_to": None}
    assert killed.linked("current") == "r2"


def test_an_engine_that_somebody_has_stopped_is_not_started(killed: FakeHost) -> None:
    systemctl.call(["stop", "llm-engine@main.service"])
    stopped.keep("main", "ada", "smoke")
    before = killed.calls()
    assert unjudged.ended(MAIN)["back_to"] == "r1"
    assert [call for call in killed.calls()[len(before) :] if "restart" in call] == []


def test_where_it_cannot_go_back_clients_stay_off(
    killed: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "replace_symlink", full)
    with pytest.raises(OSError, match="No space"):
        unjudged.ended(MAIN)
    assert killed.flag.exists()


def test_killed_while_it_drains_nothing_is_restarted(host: FakeHost) -> None:
    for identity in ("r1", "r2"):
        release.stage(host.release_request(identity))
    golive.run(host.golive_spec("r1"), Progress(None))
    host.load.write_text("1.0")
    killed_at(host, "r2", "draining", drain_seconds=20)
    before = host.calls()
    assert unjudged.ended(MAIN) == {"lowered": True, "back_to": "r1"}
    assert host.calls() == before


def test_a_first_release_has_nothing_to_go_back_to(host: FakeHost) -> None:
    release.stage(host.release_request("r1", load_seconds=0.3))
    killed_at(host, "r1", "starting", engine_up=True)
    assert unjudged.ended(MAIN) == {"lowered": True, "back_to": None}
    assert host.linked("current") == "r1"
    wait_for(lambda: engine.socket_path("main").exists())
    assert golive.run(host.golive_spec("r1"), Progress(None))["changed"]


def test_a_release_that_is_gone_is_not_gone_back_to(killed: FakeHost) -> None:
    (killed.home / "releases/r1/release.json").unlink()
    assert unjudged.before_start(MAIN) == {"back_to": None}
    assert json.loads((killed.home / "golive.json").read_text())["phase"] == "judging"
