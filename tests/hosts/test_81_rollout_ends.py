"""Rollouts that are killed, interrupted, begun twice; rollback and its hold; the day by day."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.hosts import rollouts
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell
from tests.hosts.rollouts import BOTH, GATES, engine_with, release_of
from tests.hosts.service import Streaming
from tests.hosts.standin_inventory import NAME
from tests.moments import KILLS, moment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hosts.standin_inventory import Checkout

# Of a whole rollout of both hosts; what is later ends as one that was not killed.
LATEST_SECONDS = 60.0


@pytest.fixture(autouse=True, scope="module")
def gated(steady: Checkout) -> Iterator[Checkout]:
    steady.base["rollout"] = GATES
    steady.write()
    yield steady
    del steady.base["rollout"]


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_operator_and_then_resume(checkout: Checkout, number: int) -> None:
    before = {host: release_of(host) for host in BOTH}
    checkout.base["engine"] = engine_with(8100 + number)
    checkout.write()
    with Streaming(checkout.service(DEBIAN13), 200) as streaming:
        running = rollouts.start(checkout, "rollout", NAME, "--yes")
        time.sleep(moment(number, 3.0, LATEST_SECONDS))
        running.kill()
        resumed = rollouts.fleet(checkout, "rollout", NAME, "--resume", "--yes")
        if resumed.code == 1:  # it was killed before it had begun, or after its end
            resumed.ended(1, "there is no rollout to go on with")
            rollouts.rollout(checkout).ended(0)
        else:
            resumed.ended(0)
    assert [stream.error for stream in streaming.streams if not stream.finished] == []
    rollouts.nothing_is_left()
    for host in BOTH:
        assert release_of(host) != before[host]
        assert checkout.service(host).answers()
    assert checkout.deploy().done().unchanged


def test_ctrl_c_leaves_nothing_drained_and_no_lock(checkout: Checkout) -> None:
    checkout.base["engine"] = engine_with(8200)
    checkout.write()
    running = rollouts.start(checkout, "rollout", NAME, "--yes")
    rollouts.in_phase(DEBIAN12, "starting", "judging")
    running.signal(signal.SIGINT).ended(130, "interrupted", "fleet rollout standin --resume")
    rollouts.nothing_is_left()
    rollouts.fleet(checkout, "rollout", NAME, "--resume", "--yes").ended(0)
    rollouts.nothing_is_left()


def test_the_second_of_two_operators_is_told_who_is_at_work(checkout: Checkout) -> None:
    checkout.base["engine"] = engine_with(8300)
    # In each turn, so that the first is surely still at work when the others come.
    checkout.write(rollout={"soak_seconds": 40})
    first = rollouts.start(checkout, "rollout", NAME, "--yes")
    rollouts.in_phase(DEBIAN12, "starting", "judging")
    locked = rollouts.fleet(checkout, "lock", "status", NAME).ended(0)
    assert locked.text.count("held by ") == 2
    assert "process is gone" not in locked.text
    rollouts.rollout(checkout).ended(8, "another run is at work on this host", "has held the lease")
    deploy = checkout.deploy("--limit", DEBIAN13)
    assert deploy.code == 1
    deploy.said("another run is at work on this host")
    first.finish().ended(0)
    rollouts.nothing_is_left()
    checkout.write()


def test_a_pause_waits_for_its_resume(checkout: Checkout) -> None:
    before = release_of(DEBIAN13)
    checkout.base["engine"] = engine_with(8400)
    checkout.write()
    rollouts.rollout(checkout, "--pause").ended(7, f"not touched: {DEBIAN13}")
    assert release_of(DEBIAN13) == before
    rollouts.nothing_is_left()
    rollouts.fleet(checkout, "rollout", NAME, "--resume", "--yes").ended(0)
    assert release_of(DEBIAN13) != before


def test_rollback_to_the_one_before_on_a_fleet_half_rolled_out(checkout: Checkout) -> None:
    old = {host: release_of(host) for host in BOTH}
    checkout.base["engine"] = engine_with(8500)
    checkout.write()
    rollouts.rollout(checkout, "--only", DEBIAN12).ended(0)
    new = release_of(DEBIAN12)
    back = ("rollback", NAME, "--yes", "--why", "it is slow")
    rollouts.fleet(checkout, *back).ended(0, f"{new} -> {old[DEBIAN12]}", "stays at")
    assert {host: release_of(host) for host in BOTH} == old
    rollouts.nothing_is_left()
    # The next deploy respects the hold, also where the release never was.
    ran = checkout.deploy().done()
    ran.said("is held back", "it is slow")
    assert {host: release_of(host) for host in BOTH} == old
    assert checkout.deploy().done().unchanged
    drift = rollouts.fleet(checkout, "drift", NAME)
    drift.ended(1, f"held at {old[DEBIAN12]}")
    # To the one before that, by name.
    kept = [
        name
        for name in shell(DEBIAN12, "ls -tr /srv/llm/engines/main/releases").split()
        if name not in (new, old[DEBIAN12])
    ]
    rollouts.fleet(checkout, *back[:2], kept[-1][:8], *back[2:], "--only", DEBIAN12).ended(0)
    assert release_of(DEBIAN12) == kept[-1]
    assert checkout.service(DEBIAN12).answers()
    # And the hold ends by hand.
    rollouts.fleet(checkout, "unhold", NAME).ended(0, f"{DEBIAN12}: is no longer held")
    rollouts.rollout(checkout).ended(0)
    assert release_of(DEBIAN12) == new
    assert checkout.deploy().done().unchanged


def test_drain_status_and_logs_by_hand(checkout: Checkout) -> None:
    rollouts.fleet(checkout, "drain", NAME, DEBIAN12, "--why", "fan 3").ended(0, "no request runs")
    assert not checkout.service(DEBIAN12).answers()
    said = rollouts.fleet(checkout, "status", NAME)
    said.ended(1, "drained by", "fan 3")
    rollouts.fleet(checkout, "undrain", NAME, DEBIAN12).ended(0, "serves again")
    assert checkout.service(DEBIAN12).answers()
    found = json.loads(rollouts.fleet(checkout, "status", NAME, "--json").text)["hosts"]
    assert found[DEBIAN12]["engine"] == {"text": "serves", "state": "good"}
    assert found[DEBIAN12]["release"] == release_of(DEBIAN12)
    logs = rollouts.fleet(checkout, "logs", NAME, DEBIAN12, "--lines", "50").ended(0)
    assert "Uvicorn running on unix socket" in logs.text or "POST /v1/" in logs.text
