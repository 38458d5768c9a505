"""Least work, affinity by prefix, and the dispatcher's slots."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from llm_gateway.backend import read_kv_percent
from llm_gateway.config import Config, parse_config
from llm_gateway.dispatch import Dispatcher, Wish
from llm_gateway.refusals import Refusal
from llm_gateway.routing import Candidate, choose, conversation_prefix, rendezvous


def candidates(**work: float) -> list[Candidate]:
    return [Candidate(name, one, 100, number) for number, (name, one) in enumerate(work.items())]


@pytest.mark.parametrize(
    ("work", "expected"),
    [({"a": 2, "b": 1}, "b"), ({"a": 1, "b": 1}, "a"), ({"a": 0}, "a"), ({"a": 3, "b": 2.9}, "b")],
)
def test_least_work_then_longest_unused(work: dict[str, float], expected: str) -> None:
    assert choose(candidates(**work), None, 1.25) == expected


def test_work_counts_against_capacity() -> None:
    big, small = Candidate("big", 8, 100, 0), Candidate("small", 4, 10, 1)
    assert choose([big, small], None, 1.25) == "big"


def test_a_prefix_stays_with_its_engine_while_the_load_is_balanced() -> None:
    prefix = b"system prompt"
    home = rendezvous(candidates(a=0, b=0, c=0), prefix)[0].name
    balanced = dict.fromkeys("abc", 10.0)
    assert choose(candidates(**balanced), prefix, 1.25) == home
    assert choose(candidates(**balanced | {home: 12.0}), prefix, 1.25) == home
    assert choose(candidates(**balanced | {home: 20.0}), prefix, 1.25) != home


def test_prefixes_spread_and_an_engine_that_leaves_moves_only_its_own() -> None:
    prefixes = [str(number).encode() for number in range(600)]
    before = {one: rendezvous(candidates(a=0, b=0, c=0), one)[0].name for one in prefixes}
    assert min(Counter(before.values()).values()) > 150
    after = {one: rendezvous(candidates(a=0, b=0), one)[0].name for one in prefixes}
    assert all(after[one] == home for one, home in before.items() if home != "c")


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"prompt": "abcdef"}, b"abcd"),
        ({"prompt": "abc"}, None),
        ({"prompt": ["ab", "cdef"]}, b"ab\0c"),
        ({"input": None, "prompt": "éééé"}, "éé".encode()),
        ({"messages": [{"a": 1}]}, b'{"a"'),
        ({"messages": [{"a": 1}], "tools": [{"t": 1}]}, b'{"t"'),
        ({"prompt": [1, 2, 3]}, b"1\x002\0"),
    ],
)
def test_prefixes(document: dict[str, Any], expected: bytes | None) -> None:
    assert conversation_prefix(document, 4) == expected
    assert conversation_prefix(document, 0) is None


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.375\n', 37.5),
        (b"vllm:gpu_cache_usage_perc 1e-2\n", 1.0),
        (
            b'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 0.1\n',
            30,
        ),
        (b"# vllm:kv_cache_usage_perc 0.5\nvllm:other 1\n", None),
        (b"vllm:kv_cache_usage_perc e\n", None),
        (b"", None),
    ],
)
def test_cache_use(metrics: bytes, expected: float | None) -> None:
    assert read_kv_percent(metrics) == expected


def config(names: str = "ab", **more: Any) -> Config:
    backends = [
        {"name": name, "url": f"unix:/{name}", "models": ["m"], "max_concurrent": 1}
        for name in names
    ]
    document = {"schema": 1, "backends": backends, "health": {"failures": 1, "open_seconds": 600}}
    return parse_config(json.dumps(document | more).encode())


def wish(tier: str = "default", key: str = "k", **more: Any) -> Wish:
    return Wish("m", tier, key, 1.0, **more)


def test_slots_go_round_and_who_waits_gets_the_next_one() -> None:
    async def scenario() -> None:
        dispatcher = Dispatcher(config())
        leases = [await dispatcher.acquire(wish()) for _ in range(2)]
        assert {one.backend.config.name for one in leases} == {"a", "b"}
        third = asyncio.ensure_future(dispatcher.acquire(wish()))
        await asyncio.sleep(0)
        assert dispatcher.waiting() == {"default": 1}
        leases[1].release()
        lease = await third
        assert lease.backend is leases[1].backend
        lease.release()
        leases[0].release()
        assert [one.outstanding for one in dispatcher.backends.values()] == [0, 0]
        assert [one.work for one in dispatcher.backends.values()] == [0, 0]

    asyncio.run(scenario())


def test_a_slot_given_in_the_moment_of_cancelling_is_not_lost() -> None:
    async def scenario() -> None:
        dispatcher = Dispatcher(config("a"))
        first = await dispatcher.acquire(wish())
        second = asyncio.ensure_future(dispatcher.acquire(wish()))
        await asyncio.sleep(0)
        first.release()  # the second has it, and does not know yet
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert dispatcher.backends["a"].outstanding == 0
        (await dispatcher.acquire(wish())).release()

    asyncio.run(scenario())


def test_who_waits_too_long_is_refused_and_forgotten() -> None:
    async def scenario() -> None:
        dispatcher = Dispatcher(config("a", queue={"max_wait_seconds": 0.01}))
        lease = await dispatcher.acquire(wish())
        with pytest.raises(Refusal) as refused:
            await dispatcher.acquire(wish())
        assert (refused.value.status, refused.value.code) == (503, "engine_overloaded")
        assert dispatcher.waiting() == {"default": 0}
        lease.release()

    asyncio.run(scenario())


def test_who_waits_is_refused_when_the_last_engine_goes() -> None:
    async def scenario() -> None:
        dispatcher = Dispatcher(config("a"))
        lease = await dispatcher.acquire(wish())
        waiting = asyncio.ensure_future(dispatcher.acquire(wish()))
        await asyncio.sleep(0)
        lease.backend.breaker.failed()
        dispatcher.tick()
        with pytest.raises(Refusal) as refused:
            await waiting
        assert refused.value.code == "engine_unavailable"
        assert (refused.value.retry_after_seconds or 0) > 30
        lease.release()

    asyncio.run(scenario())


def test_a_failed_over_request_goes_before_the_queue_and_not_back_to_where_it_failed() -> None:
    async def scenario() -> None:
        dispatcher = Dispatcher(config())
        a, b = [await dispatcher.acquire(wish()) for _ in range(2)]
        queued = asyncio.ensure_future(dispatcher.acquire(wish()))
        await asyncio.sleep(0)
        again = asyncio.ensure_future(dispatcher.acquire(wish(avoid={a.backend.config.name})))
        await asyncio.sleep(0)
        a.release()
        assert (await queued).backend is a.backend
        assert not again.done()
        b.release()
        assert (await again).backend is b.backend

    asyncio.run(scenario())


def test_another_configuration_keeps_slots_and_who_waits() -> None:
    async def scenario() -> None:
        dispatcher = Dispatcher(config("ab"))
        a, b = [await dispatcher.acquire(wish()) for _ in range(2)]
        waiting = asyncio.ensure_future(dispatcher.acquire(wish()))
        await asyncio.sleep(0)
        gone = dispatcher.backends["b"]
        dispatcher.configure(config("ac", tiers={"other": {}}, default_tier="other"))
        assert dispatcher.backends["a"] is a.backend
        lease = await waiting  # c is new and has room
        assert lease.backend.config.name == "c"
        assert dispatcher.retired == [gone]
        await dispatcher.close_retired()
        assert dispatcher.retired == [gone]  # its request goes on
        (a if a.backend is gone else b).release()
        await dispatcher.close_retired()
        assert dispatcher.retired == []

    asyncio.run(scenario())


def test_a_tier_that_is_gone_when_its_request_comes_to_the_queue() -> None:
    async def scenario() -> None:
        dispatcher = Dispatcher(config("a"))
        lease = await dispatcher.acquire(wish())
        waiting = asyncio.ensure_future(dispatcher.acquire(wish(tier="gone")))
        await asyncio.sleep(0)
        assert dispatcher.waiting() == {"default": 1}
        lease.release()
        (await waiting).release()

    asyncio.run(scenario())


def test_a_half_open_engine_gets_one_request_and_only_if_there_is_no_other() -> None:
    async def scenario() -> None:
        dispatcher = Dispatcher(config("ab", health={"failures": 1, "open_seconds": 0.001}))
        dispatcher.backends["a"].breaker.failed()
        await asyncio.sleep(0.01)
        assert dispatcher.backends["a"].breaker.state() == "half_open"
        lease = await dispatcher.acquire(wish())
        assert (lease.backend.config.name, lease.trial) == ("b", False)
        lease.release()
        dispatcher.backends["b"].draining = True
        lease = await dispatcher.acquire(wish())
        assert (lease.backend.config.name, lease.trial) == ("a", True)
        with pytest.raises(Refusal):
            await dispatcher.acquire(wish())
        lease.release()
        assert (await dispatcher.acquire(wish())).trial

    asyncio.run(scenario())
