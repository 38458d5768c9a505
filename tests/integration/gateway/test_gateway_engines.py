"""Engines that die, hang, drain and fill up, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.fakes.stub_engine import event
from tests.integration.gateway.running import (
    POLL_SECONDS,
    Answer,
    World,
    new_key,
    world,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pyinfra_deploy.keys.keyfile import NewKey
    from tests.integration.gateway.running import Condition

CHAT = "/v1/chat/completions"


async def read_stream(w: World) -> tuple[bytes, bool]:
    """(what arrived, whether it ended as it should)."""
    async with w.stream() as response:
        assert response.status == 200, await response.text()
        text = b""
        try:
            async for piece in response.content.iter_any():
                text += piece
        except aiohttp.ClientError:
            return text, False
        return text, True


def test_no_request_fails_that_had_not_begun_streaming_when_one_of_two_is_killed() -> None:
    async def scenario() -> None:
        async with world(2, rate=100, chunks=20) as w:
            for engine in w.engines:
                engine.first_byte_seconds = 0.1
            stop = asyncio.Event()
            results: list[tuple[bytes, bool]] = []

            async def client() -> None:
                while not stop.is_set():
                    results.append(await read_stream(w))

            clients = [asyncio.ensure_future(client()) for _ in range(20)]
            await w.until(lambda: all(engine.completed >= 10 for engine in w.engines))
            await w.engines[1].kill()
            done = w.engines[0].completed
            await w.until(lambda: w.engines[0].completed >= done + 60)
            stop.set()
            await asyncio.gather(*clients)
            broken = [text for text, whole in results if not whole]
            # Those that had begun are lost, and told so; all others were answered in full.
            assert all(text.startswith(event(0)) for text in broken)
            whole = b"".join(map(event, range(20))) + b"data: [DONE]\n\n"
            assert {text for text, good in results if good} == {whole}
            assert w.engines[1].completed >= 10

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["drop", "drop_after_headers", "error", "error_event"])
def test_another_engine_is_tried_before_the_first_byte(mode: str) -> None:
    async def scenario() -> None:
        async with world(2) as w:
            w.engines[0].mode = mode
            for _ in range(8):
                assert (await read_stream(w))[1]
            assert w.engines[0].asked("/v1/chat/completions")
            assert w.engines[1].completed == 8
            text = (await w.get("/metrics")).body.decode()
            assert 'llm_gateway_failovers_total{backend="e0"' in text

    asyncio.run(scenario())


def test_a_request_that_kills_engines_is_not_carried_to_all_of_them() -> None:
    async def scenario() -> None:
        async with world(4) as w:
            for engine in w.engines:
                engine.mode = "drop"
            answer = await w.post()
            assert (answer.status, answer.error["code"]) == (503, "engine_lost")
            assert sum(len(one.asked("/v1/chat/completions")) for one in w.engines) == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [True, False])
def test_the_engine_stops_when_the_client_leaves(stream: bool) -> None:
    async def scenario() -> None:
        async with world(rate=5, chunks=1000) as w:
            engine = w.engines[0]
            request = asyncio.ensure_future(w.post(stream=stream))
            await engine.arrived.wait()
            assert not engine.aborted.is_set()
            request.cancel()
            await engine.aborted.wait()
            await w.until(lambda: engine.active == 0)

            async def counted() -> bool:
                text = (await w.get("/metrics")).body.decode()
                return 'status="499"' in text and 'outstanding{backend="e0"} 0.0' in text

            await w.until(counted)

    asyncio.run(scenario())


def test_a_client_that_leaves_the_queue_is_never_sent() -> None:
    async def scenario() -> None:
        async with world(rate=50, chunks=1000) as w:
            w.write_config(backends=[w.backend(0, max_concurrent=1)])
            await taken_up(w)
            first = asyncio.ensure_future(w.post())
            await w.engines[0].arrived.wait()
            second = asyncio.ensure_future(w.post(temperature=0.5))
            await w.until(waiting(w, 1))
            second.cancel()
            await w.until(waiting(w, 0))
            first.cancel()
            await w.engines[0].aborted.wait()
            w.engines[0].chunks = 1
            assert (await w.post()).status == 200
            assert all("temperature" not in one for one in w.engines[0].asked(CHAT))

    asyncio.run(scenario())


def test_an_engine_that_breaks_off_is_told_in_the_stream_and_ends_it_unfinished() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.engines[0].mode = "die_in_stream"
            text, whole = await read_stream(w)
            assert not whole
            begun = event(0) + event(1)
            assert text.startswith(begun)
            told = json.loads(text[len(begun) :].removeprefix(b"data: "))
            assert told["error"]["code"] == "engine_lost"
            assert b"[DONE]" not in text

    asyncio.run(scenario())


def test_silence_is_answered_and_not_asked_again() -> None:
    async def scenario() -> None:
        async with world(2, timeouts={"first_byte_seconds": 0.3}) as w:
            for engine in w.engines:
                engine.mode = "hang"
            answer = await w.post()
            assert (answer.status, answer.error["code"]) == (504, "engine_timeout")
            assert sum(len(one.asked(CHAT)) for one in w.engines) == 1

    asyncio.run(scenario())


def test_a_dead_engine_is_left_alone_and_taken_back_by_a_probe() -> None:
    async def scenario() -> None:
        async with world(2) as w:
            await w.engines[0].kill()
            for _ in range(12):
                assert (await w.post()).status == 200
            assert (await w.ready())["backends"]["e0"]["breaker"] != "closed"
            await w.engines[0].start()

            async def closed() -> bool:
                return bool((await w.ready())["backends"]["e0"]["breaker"] == "closed")

            await w.until(closed)
            # No client's request was risked for it.
            assert w.engines[0].asked(CHAT) == []
            for _ in range(4):
                assert (await w.post()).status == 200
            assert w.engines[0].asked(CHAT)

    asyncio.run(scenario())


def test_active_health_finds_an_engine_that_hangs() -> None:
    async def scenario() -> None:
        async with world(
            1, health={"interval_seconds": 0.2, "timeout_seconds": 0.2, "failures": 2}
        ) as w:
            w.engines[0].mode = "hang"
            await w.until(down(w))
            answer = await w.post()
            assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
            assert "retry-after" in answer.headers
            assert (await w.get("/health")).status == 503
            assert w.engines[0].asked(CHAT) == []

    asyncio.run(scenario())


def test_an_engine_of_another_host_that_hangs_is_found_whatever_its_ready_says() -> None:
    async def scenario() -> None:
        async with world() as w:
            health = {"interval_seconds": 0.2, "timeout_seconds": 0.2, "failures": 2}
            w.write_config(backends=[w.backend(0, ready_path="/ready")], health=health)
            await taken_up(w)
            w.engines[0].mode = "hang"  # vLLM's /health, which a door asks, stays 200
            await w.until(breaker_is_closed(w, False))
            w.engines[0].mode = "normal"
            await w.until(breaker_is_closed(w, True))

    asyncio.run(scenario())


def test_failures_of_requests_count_though_ready_is_good_between_them() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.write_config(backends=[w.backend(0, ready_path="/ready")])
            await taken_up(w)
            w.engines[0].mode = "drop"
            for _ in range(2):
                assert (await w.post()).status == 503
                # Each asks twice; three failures in a row open the breaker.
                wanted = len(ready_asked(w)) + 2
                while len(ready_asked(w)) < wanted:
                    await asyncio.sleep(0.1)
            assert await breaker_is_closed(w, False)()

    asyncio.run(scenario())


def breaker_is_closed(w: World, wanted: bool) -> Callable[[], Awaitable[bool]]:
    async def condition() -> bool:
        closed = (await w.ready())["backends"]["e0"]["breaker"] == "closed"
        return bool(closed) is wanted

    return condition


def ready_asked(w: World) -> list[str]:
    return [path for path, _, _ in w.engines[0].requests if path == "/ready"]


def test_a_client_that_reads_slowly_is_no_silent_engine() -> None:
    async def scenario() -> None:
        async with world(rate=2000, chunks=100, timeouts={"between_bytes_seconds": 1}) as w:
            # More than all sockets and buffers on the way can hold.
            w.engines[0].padding_bytes = 100_000
            async with w.stream() as response:
                await response.content.readany()
                await asyncio.sleep(3)
                assert (await response.read()).endswith(b"data: [DONE]\n\n")
            assert await breaker_is_closed(w, True)()

    asyncio.run(scenario())


def test_a_draining_engine_keeps_its_streams_and_gets_no_new_ones() -> None:
    async def scenario() -> None:
        async with world(2, rate=20, chunks=40) as w:
            flag = w.directory / "drain"
            w.write_config(backends=[w.backend(0, drain_flag=str(flag)), w.backend(1)])
            await taken_up(w)
            streams = [asyncio.ensure_future(read_stream(w)) for _ in range(4)]
            await w.until(lambda: sum(one.active for one in w.engines) == 4)
            assert w.engines[0].active == 2
            flag.touch()
            await w.until(drained(w))
            w.engines[1].rate = 1000
            for _ in range(4):
                assert (await w.post()).status == 200
            assert all(whole for _, whole in await asyncio.gather(*streams))
            assert len(w.engines[0].asked(CHAT)) == 2
            w.write_config(backends=[w.backend(0, drain_flag=str(flag))])
            await w.until(down(w))
            answer = await w.post()
            assert (answer.status, answer.error["code"]) == (503, "engine_draining")

    asyncio.run(scenario())


def test_a_remote_engine_says_itself_that_it_drains() -> None:
    async def scenario() -> None:
        async with world(2) as w:
            w.write_config(backends=[w.backend(number, ready_path="/ready") for number in range(2)])
            await taken_up(w)
            w.engines[0].draining = True
            await w.until(drained(w))
            for _ in range(4):
                assert (await w.post()).status == 200
            assert w.engines[0].asked(CHAT) == []

    asyncio.run(scenario())


def test_the_lowest_tier_moves_at_saturation_and_gives_way_when_the_queue_is_full() -> None:
    async def scenario() -> None:
        async with world(rate=1000, chunks=5) as w:
            low, high = new_key("low"), new_key("high")
            w.write_config(
                backends=[w.backend(0, max_concurrent=2)],
                tiers={"batch": {"weight": 1}, "live": {"weight": 100}},
                default_tier="live",
                queue={"max_waiting": 20},
            )
            write_tiers(w, {low: "batch", high: "live"})
            await taken_up(w, high)
            found: list[tuple[str, int]] = []
            stop = asyncio.Event()

            async def client(key_name: str) -> None:
                key = low if key_name == "low" else high
                while not stop.is_set():
                    answer: Answer = await w.post(key=key)
                    found.append((key_name, answer.status))
                    assert answer.status in (200, 503)
                    if answer.status == 503:
                        assert "retry-after" in answer.headers
                        await asyncio.sleep(POLL_SECONDS)

            clients = [asyncio.ensure_future(client(name)) for name in ["low"] * 15 + ["high"] * 15]
            await w.until(lambda: len([1 for one in found if one[1] == 200]) >= 400)
            stop.set()
            await asyncio.gather(*clients)
            counts = Counter(found)
            assert w.engines[0].most_active == 2
            assert counts["low", 200] >= 0.04 * counts["high", 200]
            assert counts["high", 200] > counts["low", 200]
            assert counts["low", 503] > counts["high", 503]

    asyncio.run(scenario())


def test_vllms_own_priorities_are_set_by_tier_alone() -> None:
    async def scenario() -> None:
        async with world() as w:
            low, high = new_key("low"), new_key("high")
            w.write_config(
                backends=[w.backend(0, priority_scheduling=True)],
                tiers={"batch": {"priority": 10}, "live": {"priority": 0}},
                default_tier="live",
            )
            write_tiers(w, {low: "batch", high: "live"})
            await taken_up(w, high)
            for key in (low, high):
                await w.post(key=key, priority=-100)
            assert [one["priority"] for one in w.engines[0].asked(CHAT)] == [10, 0]

    asyncio.run(scenario())


def write_tiers(w: World, tiers: dict[NewKey, str]) -> None:
    w.write_keys(*tiers)
    path = w.directory / "keys.json"
    document = json.loads(path.read_text())
    for entry, tier in zip(document["keys"], tiers.values(), strict=True):
        entry["tier"] = tier
    write_json(path, document)


async def taken_up(w: World, key: NewKey | None = None) -> None:
    """Wait until the service has what was just written: one more alias says so."""
    extra = {"url": w.config["backends"][0]["url"], "name": "sign", "models": ["sign"]}
    document = w.config | {"backends": [*w.config["backends"], extra]}
    write_json(w.directory / "config.json", document)

    async def known() -> bool:
        answer = await w.get("/v1/models", key)
        return answer.status == 200 and b'"sign"' in answer.body

    await w.until(known)


def waiting(w: World, number: int) -> Condition:
    async def condition() -> bool:
        return bool((await w.ready())["waiting"]["default"] == number)

    return condition


def down(w: World) -> Condition:
    async def condition() -> bool:
        return not (await w.ready())["ready"]

    return condition


def drained(w: World) -> Condition:
    async def condition() -> bool:
        return bool((await w.ready())["backends"]["e0"]["draining"])

    return condition
