"""A power cut on the host, and kill -9 of the run, wherever they hit: the next run completes.

FLEET_KILLS says how many runs are killed (default 2), FLEET_SEED at which moments (default: by the
clock). The seed is printed.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from lab import hosts
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell, upper_of, wait_for
from tests.hosts.mended import ROOT, assert_nothing_is_half_visible, restore, wipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.hosts.standin_inventory import Checkout

KILLS = int(os.environ.get("FLEET_KILLS", "2"))
SEED = int(os.environ.get("FLEET_SEED", time.time_ns() % 1_000_000))

pytestmark = pytest.mark.usefixtures("steady")


def cut_power(checkout: Checkout, host: str, step: str, moment: Callable[[], bool]) -> None:
    """Deploy, and cut the host's power at a moment; the run names host, step, cause and next move,
    and the next one completes."""
    running = checkout.start("--limit", host)
    wait_for(moment)
    hosts.kill(host)
    hosts.boot(host)
    ran = running.finish()
    assert ran.code == 1
    assert ran.failed == {host}
    assert re.search(rf"\[{host}\] +{step}: llm-\S+ ended without a result", ran.log), ran.log
    ran.said("the host lost power or was rebooted while it ran", "fix: Start it again: it resumes")
    assert_nothing_is_half_visible(host)
    restore(checkout, host)


def test_power_loss_during_the_install(checkout: Checkout) -> None:
    runtimes = upper_of(DEBIAN12) / ROOT / "runtimes"
    shell(
        DEBIAN12,
        f"systemctl stop llm-engine@main; rm -rf /{ROOT}/runtimes/* /{ROOT}/tools/modelscope*",
    )
    tools = runtimes.parent / "tools"

    def installing() -> bool:
        return any(tools.glob("modelscope*/lib")) and not any(
            tools.glob("modelscope*/.fleet-complete.json")
        )

    cut_power(checkout, DEBIAN12, "the modelscope client", installing)


def test_power_loss_during_go_live(checkout: Checkout) -> None:
    """Between the switch and the first answer: the old release is what there is to go back to."""
    before = shell(DEBIAN12, "readlink /srv/llm/engines/main/current").strip()
    note = upper_of(DEBIAN12) / ROOT / "engines/main/golive.json"
    checkout.write(engine={"args": {"seed": 3, "additional-config": {"start_seconds": 3}}})
    cut_power(
        checkout,
        DEBIAN12,
        "go-live",
        lambda: json.loads(note.read_text())["phase"] == "starting",
    )
    assert shell(DEBIAN12, "readlink /srv/llm/engines/main/current").strip() != before
    assert json.loads(note.read_text())["phase"] == "done"
    previous = shell(DEBIAN12, "readlink /srv/llm/engines/main/previous").strip()
    assert previous == before
    checkout.write()


def test_kill_of_the_go_live_on_the_host(checkout: Checkout) -> None:
    """kill -9 of the host's own job between the switch and the first answer: its drain flag goes
    with it, the run says what killed it, and the next one waits for what is starting."""
    before = shell(DEBIAN12, "readlink /srv/llm/engines/main/current").strip()
    note = upper_of(DEBIAN12) / ROOT / "engines/main/golive.json"
    slow = {**checkout.base["engine"],
            "args": {"seed": 7, "additional-config": {"start_seconds": 6}}}  # fmt: skip
    checkout.write(host_variables={DEBIAN12: {"engine": slow}})
    running = checkout.start("--limit", DEBIAN12)
    wait_for(lambda: json.loads(note.read_text())["phase"] == "starting")
    shell(DEBIAN12, "systemctl kill --signal=KILL llm-golive@main.service")
    ran = running.finish()
    assert ran.code == 1
    assert ran.failed == {DEBIAN12}
    ran.said("it was killed by SIGKILL")
    shell(DEBIAN12, "test ! -e /run/llm/drain/main")
    assert_nothing_is_half_visible(DEBIAN12)
    checkout.deploy("--limit", DEBIAN12).done()
    assert json.loads(note.read_text())["phase"] == "done"
    assert shell(DEBIAN12, "readlink /srv/llm/engines/main/previous").strip() == before
    assert checkout.service(DEBIAN12).answers()
    checkout.write()


def slow_start(seed: int) -> dict[str, Any]:
    """Engine settings of another release, whose start leaves time for a kill and two runs."""
    return {
        "args": {"seed": seed, "additional-config": {"start_seconds": 30}},
        "start_timeout_seconds": 90,
        "stall_timeout_seconds": 60,
    }


def kill_while_starting(checkout: Checkout, seed: int) -> Callable[[], bool]:
    """kill -9 of a run whose go-live goes on; whether that has ended well."""
    note = upper_of(DEBIAN12) / ROOT / "engines/main/golive.json"
    checkout.write(engine=slow_start(seed))
    running = checkout.start("--limit", DEBIAN12)
    wait_for(lambda: json.loads(note.read_text())["phase"] == "starting")
    running.kill()
    return lambda: bool(json.loads(note.read_text())["phase"] == "done")


def test_the_go_live_of_a_killed_run_is_joined_and_verified(checkout: Checkout) -> None:
    kill_while_starting(checkout, seed=4)
    checkout.write(engine=slow_start(5))
    other = checkout.deploy("--limit", DEBIAN12)
    assert other.code == 1
    other.said("engine.other-go-live", "sudo systemctl stop llm-golive@main.service")
    checkout.write(engine=slow_start(4))
    ran = checkout.deploy("--limit", DEBIAN12).done()
    ran.said("is running: it is joined", "joins llm-golive@main.service", "verify: models")
    assert "interrupted" not in ran.log
    assert checkout.deploy("--limit", DEBIAN12).done().unchanged


def test_a_go_live_that_ended_without_its_run_is_verified_by_the_next(checkout: Checkout) -> None:
    ended = kill_while_starting(checkout, seed=6)
    wait_for(ended)
    # Its unit ends a moment after the note.
    wait_for(lambda: "inactive" in shell(DEBIAN12, "systemctl is-active llm-golive@main || true"))
    ran = checkout.deploy("--limit", DEBIAN12).done()
    ran.said("has not been verified since it was started", "verify: models")
    assert "will go live" not in ran.log
    assert checkout.deploy("--limit", DEBIAN12).done().unchanged
    checkout.write()
    restore(checkout, DEBIAN12)


@pytest.mark.parametrize("number", range(0, KILLS, 2))
def test_a_first_deploy_that_is_killed(
    checkout: Checkout, number: int, say: Callable[[str], None]
) -> None:
    """kill -9 of the run at a random moment of a first deploy, and again of the run that mends it;
    the host's own jobs go on."""
    wipe(DEBIAN13)
    for attempt in range(number, min(number + 2, KILLS)):
        # The second run has less to do.
        latest = 26.0 if attempt == number else 12.0
        moment = random.Random(SEED + attempt).uniform(1.5, latest)  # noqa: S311 - not a secret
        running = checkout.start("--limit", DEBIAN13)
        time.sleep(moment)
        late = " (it had ended)" if running.process.poll() is not None else ""
        running.kill()
        say(f"kill {attempt} of FLEET_SEED={SEED}: after {moment:.1f} s{late}")
        assert_nothing_is_half_visible(DEBIAN13)
    restore(checkout, DEBIAN13)
