"""What a host adds to a release goes live with it, and back with it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import binding, engine, golive, hold, release
from fleet_host.errors import HostError
from fleet_host.status import Progress

if TYPE_CHECKING:
    from tests.fakes.engine_host import FakeHost

EIGHT, FOUR = ("CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7\n", "CUDA_VISIBLE_DEVICES=0,1,2,3\n")
ONE_NODE = "[Service]\nNUMAPolicy=bind\nNUMAMask=0\n"


def stage(host: FakeHost, identity: str, text: str, placement: str = "", **behaviour: Any) -> None:
    release.stage(host.release_request(identity, **behaviour))
    binding.bind(host.bind(identity, text, placement))


def go(host: FakeHost, identity: str) -> dict[str, Any]:
    return golive.run(host.golive_spec(identity), Progress(None))


def goes_back(host: FakeHost, identity: str) -> None:
    with pytest.raises(HostError, match="serves again"):
        go(host, identity)


def ran_with(text: str) -> bool:
    """Whether the running engine was started with this binding."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return bool(engine.read_started("main")["binding"] == digest)


def placed(host: FakeHost) -> str | None:
    path = binding.drop_in("main")
    return path.read_text() if path.exists() else None


def test_going_back_to_a_wider_release_gives_it_its_gpus_again(host: FakeHost) -> None:
    stage(host, "r1", EIGHT)
    go(host, "r1")
    stage(host, "r2", FOUR, ONE_NODE, behave="die")
    assert placed(host) is None
    goes_back(host, "r2")
    assert ran_with(EIGHT)
    assert placed(host) is None


def test_a_rollback_takes_the_binding_with_it(host: FakeHost) -> None:
    stage(host, "r1", EIGHT)
    go(host, "r1")
    stage(host, "r2", FOUR, ONE_NODE)
    go(host, "r2")
    assert ran_with(FOUR)
    assert placed(host) == ONE_NODE
    hold.begin({"engine": "main", "kept": "r1", "rejected": ["r2"], "who": "ada", "why": "slow"})
    go(host, "r1")
    assert ran_with(EIGHT)
    assert placed(host) is None
    hold.end({"engine": "main", "who": "ada"})
    go(host, "r2")
    assert (ran_with(FOUR), placed(host)) == (True, ONE_NODE)
    assert host.calls().count("daemon-reload") == 3


def test_a_directory_that_a_deploy_has_removed_is_there_for_going_back(host: FakeHost) -> None:
    stage(host, "r1", FOUR, ONE_NODE)
    go(host, "r1")
    stage(host, "r2", EIGHT)
    go(host, "r2")
    binding.drop_in("main").parent.rmdir()
    hold.begin({"engine": "main", "kept": "r1", "rejected": ["r2"], "who": "ada", "why": "slow"})
    assert binding.drop_in("main").parent.is_dir()


def test_a_release_from_before_keeps_what_it_ran_with(host: FakeHost) -> None:
    """The engine's own binding.env, and the drop-in that was there."""
    release.stage(host.release_request("r1"))
    (host.home / "binding.env").write_text(EIGHT)
    binding.drop_in("main").parent.mkdir(parents=True)
    binding.drop_in("main").write_text(ONE_NODE)
    go(host, "r1")
    assert ran_with(EIGHT)
    assert go(host, "r1")["changed"] is False
    stage(host, "r2", FOUR, behave="die")
    goes_back(host, "r2")
    assert (ran_with(EIGHT), placed(host)) == (True, ONE_NODE)
    # Bound with what it has already, it is the same.
    before = host.calls()
    binding.bind(host.bind("r1", EIGHT, ONE_NODE))
    assert go(host, "r1")["changed"] is False
    assert host.calls() == before
