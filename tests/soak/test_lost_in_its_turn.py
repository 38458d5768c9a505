"""A host that loses its power or its network in a rollout's turn, and stays away for longer than
the run waits for it: reported, and mended by the next run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab import hosts
from tests.hosts import rollouts
from tests.hosts.lab_session import DEBIAN12, DEBIAN13
from tests.hosts.rollouts import BOTH, GATES, engine_with
from tests.hosts.standin_inventory import NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hosts.standin_inventory import Checkout


@pytest.fixture(autouse=True, scope="module")
def gated(steady: Checkout) -> Iterator[Checkout]:
    steady.base["rollout"] = GATES
    steady.write()
    yield steady
    del steady.base["rollout"]


@pytest.mark.parametrize(
    ("seed", "end", "back"),
    [(85, hosts.kill, hosts.boot), (86, hosts.cut, hosts.heal)],
    ids=["power cut", "network cut"],
)
def test_it_is_reported_and_mended_by_the_next_run(
    checkout: Checkout, seed: int, end: Callable[[str], None], back: Callable[[str], None]
) -> None:
    checkout.base["engine"] = engine_with(seed)
    checkout.write()
    running = rollouts.start(checkout, "rollout", NAME, "--yes")
    rollouts.in_phase(DEBIAN13, "starting", "judging")
    end(DEBIAN13)
    try:
        said = running.finish()
    finally:
        back(DEBIAN13)
    said.ended(6, f"{DEBIAN13}: was not reached to its end", f"{DEBIAN12}: serves the release")
    checkout.service(DEBIAN13).wait(60)
    rollouts.rollout(checkout).ended(0)
    rollouts.nothing_is_left()
    assert len({golive["to"] for golive in map(rollouts.golive, BOTH)}) == 2
    assert checkout.deploy().done().unchanged
