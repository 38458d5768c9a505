"""What an engine says of itself, against what was configured for it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from llm_gateway.config import Config, parse_config
from llm_gateway.dispatch import Dispatcher, Wish
from llm_gateway.refusals import Refusal
from llm_gateway.serves import Serves, in_force, read_serves

TOLD = {"release": "r2", "model": "new", "max_model_len": 100, "priority_scheduling": False}
NEW = Serves("r2", "new", 100, False)


def config(models: tuple[str, ...] = ("m",), names: str = "ab") -> Config:
    backends = [
        {"name": name, "url": f"unix:/{name}", "models": list(models), "aliases": {"short": "m"},
         "max_model_len": 4096, "priority_scheduling": True, "max_concurrent": 1}
        for name in names
    ]  # fmt: skip
    return parse_config(json.dumps({"schema": 1, "backends": backends}).encode())


def wish(model: str = "m") -> Wish:
    return Wish(model, "default", "k", 1.0)


def test_what_a_door_says_is_read() -> None:
    assert read_serves({"ready": True, "serves": TOLD}) == NEW
    assert read_serves({"serves": TOLD | {"max_model_len": None}}) == Serves(
        "r2", "new", None, False
    )


@pytest.mark.parametrize(
    "told",
    [
        None,
        "new",
        {},
        {**TOLD, "model": ""},
        {**TOLD, "model": 3},
        {**TOLD, "model": "x" * 513},
        {**TOLD, "release": None},
        {**TOLD, "max_model_len": 0},
        {**TOLD, "max_model_len": True},
        {**TOLD, "max_model_len": "4096"},
        {**TOLD, "priority_scheduling": None},
    ],
)
def test_a_door_that_does_not_say_leaves_the_configuration_in_force(told: Any) -> None:
    assert read_serves({"ready": True, "serves": told}) is None
    (backend, _) = config().backends
    assert in_force(backend, None) is backend


def test_a_new_name_keeps_its_aliases() -> None:
    found = in_force(config().backends[0], NEW)
    assert (found.models, found.aliases) == (("new",), (("short", "new"),))
    assert (found.max_model_len, found.priority_scheduling) == (100, False)
    assert in_force(config().backends[0], Serves("r2", "short", None, True)).aliases == ()


def test_an_engine_of_several_names_keeps_them_while_the_one_told_is_among_them() -> None:
    found = in_force(config(("m", "adapter")).backends[0], Serves("r2", "m", None, True))
    assert (found.models, found.aliases) == (("m", "adapter"), (("short", "m"),))


def test_requests_follow_the_names_also_those_that_wait() -> None:
    async def scenario() -> None:
        dispatcher = Dispatcher(config())
        leases = [await dispatcher.acquire(wish()) for _ in range(2)]
        canary, other = leases
        waiting = asyncio.ensure_future(dispatcher.acquire(wish()))
        await asyncio.sleep(0)
        assert canary.backend.heard(NEW)
        assert not canary.backend.heard(NEW)
        dispatcher.rerouted()
        assert dispatcher.config.models == {"m", "new", "short"}
        assert dispatcher.pool("m") == (other.backend.config.name,)
        assert dispatcher.pool("new") == (canary.backend.config.name,)
        canary.release()
        await asyncio.sleep(0)
        assert not waiting.done()  # it asks for a name that this one has no more
        other.release()
        (await waiting).release()
        # A configuration pushed later has what the settings ask for, and changes nothing of it.
        dispatcher.configure(config())
        assert dispatcher.pool("new") == (canary.backend.config.name,)
        other.backend.heard(NEW)
        dispatcher.rerouted()
        assert dispatcher.config.models == {"new", "short"}
        with pytest.raises(Refusal):
            await dispatcher.acquire(wish())

    asyncio.run(scenario())


def test_what_a_former_release_told_of_its_length_is_forgotten() -> None:
    backend = Dispatcher(config()).backends["a"]
    backend.heard(Serves("r1", "m", None, False))
    backend.told_max_model_len = 4096
    backend.heard(Serves("r2", "m", None, False))
    assert backend.max_model_len is None


def test_what_was_sent_back_goes_before_the_queue_and_may_go_back() -> None:
    async def scenario() -> None:
        dispatcher = Dispatcher(config())
        a, b = [await dispatcher.acquire(wish()) for _ in range(2)]
        a.backend.refused_to_begin()
        again = wish()
        again.sent_back = True
        queued = asyncio.ensure_future(dispatcher.acquire(wish()))
        await asyncio.sleep(0)
        returned = asyncio.ensure_future(dispatcher.acquire(again))
        await asyncio.sleep(0)
        # Meanwhile the one that sent it back drains no more, and the other begins to.
        a.backend.remote_draining, b.backend.remote_draining = False, True
        dispatcher.tick()
        a.release()
        assert (await returned).backend is a.backend
        assert not queued.done()
        queued.cancel()

    asyncio.run(scenario())
