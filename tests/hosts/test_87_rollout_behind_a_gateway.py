"""A rolling upgrade of three engines behind one gateway: clients see nothing of it, and a release
that is no good costs them nothing either."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.hosts import rollouts, three_engines
from tests.hosts.lab_session import wait_for
from tests.hosts.rollouts import GATES, engine_with, release_of
from tests.hosts.service import Asking, Streaming
from tests.hosts.standin_inventory import NAME
from tests.hosts.three_engines import ENGINES, all_are_well, backends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hosts.service import Service
    from tests.hosts.standin_inventory import Checkout

STREAMS = (60, 110, 210, 310)


@pytest.fixture(scope="module")
def service(steady: Checkout) -> Iterator[Service]:
    steady.base["rollout"] = GATES
    with three_engines.deployed(steady) as service:
        wait_for(all_are_well, 30)
        yield service
    del steady.base["rollout"]
    steady.write()


@contextlib.contextmanager
def clients(service: Service, say: Callable[[str], None]) -> Iterator[None]:
    """Streams and short answers all the while; none fails and none is cut."""
    with contextlib.ExitStack() as stack:
        streaming = [stack.enter_context(Streaming(service, tokens)) for tokens in STREAMS]
        asking = [stack.enter_context(Asking(service, tokens)) for tokens in (2, 4)]
        yield
    streams = [stream for one in streaming for stream in one.streams]
    assert [stream.error for stream in streams if not stream.finished] == []
    assert [stream.error for one in streaming for stream in one.refused] == []
    answers = [answer for one in asking for answer in one.answers]
    assert [answer for answer in answers if answer.status != 200] == []
    say(f"{len(streams)} streams and {len(answers)} short answers, none failed or cut")


def engine(seed: int, **behaviour: Any) -> dict[str, Any]:
    """Of a seed that no other file's engine has: one that ran before counts as gone back to."""
    return {**engine_with(seed, **behaviour), "served_model_name": three_engines.MODEL}


def test_a_rolling_upgrade(
    checkout: Checkout, service: Service, say: Callable[[str], None]
) -> None:
    before = {host: release_of(host) for host in ENGINES}
    three_engines.write(checkout, **engine(8701))
    with clients(service, say):
        rollouts.rollout(checkout).ended(0, "complete (exit code 0)")
    assert all(release_of(host) != before[host] for host in ENGINES)
    rollouts.nothing_is_left(ENGINES)
    assert all_are_well()
    assert checkout.deploy().done().unchanged


def test_one_that_is_too_slow_costs_nobody_anything(
    checkout: Checkout, service: Service, say: Callable[[str], None]
) -> None:
    before = {host: release_of(host) for host in ENGINES}
    three_engines.write(checkout, **engine(8702, token_seconds=2))
    with clients(service, say):
        said = rollouts.rollout(checkout)
    said.ended(3, "went back and serves its previous release")
    assert {host: release_of(host) for host in ENGINES} == before
    rollouts.nothing_is_left(ENGINES)
    wait_for(all_are_well, 30)


def test_a_rollback_of_a_fleet_half_rolled_out(
    checkout: Checkout, service: Service, say: Callable[[str], None]
) -> None:
    before = {host: release_of(host) for host in ENGINES}
    three_engines.write(checkout, **engine(8703))
    rollouts.rollout(checkout, "--only", ENGINES[0]).ended(0)
    assert release_of(ENGINES[0]) != before[ENGINES[0]]
    with clients(service, say):
        rollouts.fleet(checkout, "rollback", NAME, "--yes").ended(0)
    assert {host: release_of(host) for host in ENGINES} == before
    rollouts.nothing_is_left(ENGINES)
    # It holds: a deploy does not bring back what was taken back, and says so.
    assert checkout.deploy().done().unchanged
    assert {host: release_of(host) for host in ENGINES} == before
    assert not any(one["draining"] for one in backends().values())
