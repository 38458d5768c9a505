"""Long versions of what tests/hosts does once: power cuts anywhere, and switches under load.

FLEET_KILLS (default 20) cuts and FLEET_SWITCHES (default 10) switches; FLEET_SEED repeats a run.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from typing import TYPE_CHECKING

import pytest

from lab import hosts
from tests.hosts.lab_session import DEBIAN12, DEBIAN13
from tests.hosts.mended import assert_nothing_is_half_visible, restore, wipe
from tests.hosts.service import Poll, Streaming

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.hosts.standin_inventory import Checkout

CUTS = int(os.environ.get("FLEET_KILLS", "20"))
SWITCHES = int(os.environ.get("FLEET_SWITCHES", "10"))
SEED = int(os.environ.get("FLEET_SEED", time.time_ns() % 1_000_000))
BOTH = (DEBIAN12, DEBIAN13)
STREAMS = 6

pytestmark = pytest.mark.usefixtures("steady")


@pytest.mark.parametrize("number", range(CUTS))
def test_power_cut_anywhere_in_a_first_deploy(
    checkout: Checkout, number: int, say: Callable[[str], None]
) -> None:
    host = BOTH[number % 2]
    moment = random.Random(SEED + number).uniform(2.0, 30.0)  # noqa: S311 - not a secret
    wipe(host)
    running = checkout.start("--limit", host)
    time.sleep(moment)
    hosts.kill(host)
    say(f"cut {number} of FLEET_SEED={SEED}: {host} after {moment:.1f} s")
    assert_nothing_is_half_visible(host, is_on=False)
    hosts.boot(host)
    running.finish()
    assert_nothing_is_half_visible(host)
    restore(checkout, host)


def test_switches_under_load_cut_no_stream(checkout: Checkout, say: Callable[[str], None]) -> None:
    """Each switch goes host by host; streams that were let in end, and one host always answers."""
    services = {host: checkout.service(host) for host in BOTH}
    let_in = 0
    for number in range(SWITCHES):
        checkout.write(engine={"args": {"seed": number + 1}})
        with contextlib.ExitStack() as stack:
            loads = [
                stack.enter_context(Streaming(services[host], tokens=100 + 50 * at))
                for host in BOTH
                for at in range(STREAMS)
            ]
            polls = [stack.enter_context(Poll(services[host], 0.3)) for host in BOTH]
            checkout.deploy().done()
        for load in loads:
            assert [stream.error for stream in load.streams if not stream.finished] == []
            let_in += len(load.streams)
        windows = sorted((min(poll.down), max(poll.down)) for poll in polls)
        assert windows[0][1] < windows[1][0], f"both hosts were down at once: {windows}"
    say(f"{SWITCHES} switches, {let_in} streams, none cut")
