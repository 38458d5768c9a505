"""What a body may have in it, and how much all of them may have together."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from llm_gateway.bodies import (
    LARGE_BYTES,
    MAX_COMMAS,
    MAX_CONTAINERS,
    MAX_STRINGS,
    Bodies,
    Held,
    check_values,
)
from llm_gateway.refusals import Refusal

MIB = 1 << 20
MODEL = b'{"model":"m","prompt":'


@pytest.mark.parametrize(
    "body",
    [
        MODEL + b"[" + b",".join([b"[]"] * MAX_CONTAINERS) + b"]}",
        MODEL + b"[" + b",".join([b"{}"] * MAX_CONTAINERS) + b"]}",
        MODEL + b'"a","x":[' + b",".join([b'""'] * MAX_STRINGS) + b"]}",
        MODEL + b"[" + b",".join([b"1"] * (MAX_COMMAS + 2)) + b"]}",
        # Quotes in texts are not to hide what is between the texts.
        MODEL + b'"\\\\","x":[' + b",".join([b"[]"] * MAX_CONTAINERS) + b']"}',
        MODEL + b'"\\"","x":[' + b",".join([b"[]"] * MAX_CONTAINERS) + b"]}",
        b"[" * 4 * MIB,
        b"," * 4 * MIB,
        b'"' * 4 * MIB,
    ],
    ids=["arrays", "objects", "texts", "values", "backslash", "quote", "open", "commas", "quotes"],
)
def test_more_values_than_are_worth_reading(body: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        check_values(body)
    assert (refused.value.status, refused.value.code) == (400, "too_many_values")


@pytest.mark.parametrize(
    "document",
    [
        {"prompt": "a, b [c] {d} " * MIB},
        {"prompt": '"' * 2 * MIB},
        {"prompt": '\\"[' * MIB},
        {"prompt": "\\" * MIB + "[[{" * MIB},
        {"prompt": list(range(MAX_COMMAS - 1))},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": '"['}]}] * 25_000},
    ],
    ids=["text", "quotes", "escapes", "backslashes", "token ids", "messages"],
)
def test_what_clients_may_well_send(document: object) -> None:
    check_values(json.dumps(document).encode())


def test_all_bodies_together_are_bounded() -> None:
    bodies = Bodies()
    held = [Held(bodies) for _ in range(5)]
    for one in held[:4]:
        one.add(100 * MIB, 100 * MIB)
    with pytest.raises(Refusal) as refused:
        held[4].add(1, 100 * MIB)
    assert (refused.value.status, refused.value.retry_after_seconds) == (503, 5)
    held[0].release()
    held[0].release()
    held[4].add(100 * MIB, 100 * MIB)
    assert bodies.held_bytes == 400 * MIB


def test_large_bodies_are_read_one_at_a_time_and_leave_time_for_streams() -> None:
    async def scenario() -> None:
        bodies, reading = Bodies(), 0

        async def read(size_bytes: int) -> float:
            nonlocal reading
            async with bodies.turn(size_bytes):
                reading += 1
                assert reading == 1
                time.sleep(0.05)  # as json.loads does
                reading -= 1
            return time.monotonic()

        began = time.monotonic()
        ends = await asyncio.gather(*(read(LARGE_BYTES) for _ in range(3)))
        assert max(ends) - began >= 6 * 0.05
        # Small ones wait for nobody.
        assert await asyncio.wait_for(read(10), 5)

    asyncio.run(scenario())
