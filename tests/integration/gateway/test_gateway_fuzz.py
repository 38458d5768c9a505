"""Bodies that nobody would send on purpose: an answer in words, and never a 500 of ours."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

from tests.integration.gateway.running import MODEL, chat, world

ROUNDS = 2000
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 1e308, "", "x", "\x00", "\ud800", "é" * 50,
    [], [[]], [None], [1, 2, 3], ["a", 1], [[1], ["x"]], {}, {"": {}}, {"role": 1},
    [{"role": "user"}], [{"role": "user", "content": None}], [{"role": "user", "content": [1]}],
    [{"role": "user", "content": [{"type": "text", "text": 7}]}],
]  # fmt: skip
NAMES = [
    *("model", "messages", "prompt", "input", "stream", "stream_options", "max_tokens", "n"),
    *("max_completion_tokens", "max_output_tokens", "priority", "tools", "chat_template_kwargs"),
    *("temperature", "instructions", "documents", "truncate_prompt_tokens", "add_special_tokens"),
    *("continue_final_message", "previous_response_id", "reasoning_effort", "odd", ""),
]
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/tokenize"]


def body(chance: random.Random) -> bytes:
    kind = chance.randrange(10)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    document = chat()
    for _ in range(chance.randrange(1, 5)):
        document[chance.choice(NAMES)] = chance.choice(ODD)
    if chance.random() < 0.7:
        document["model"] = MODEL
    text = json.dumps(document).encode()
    if kind == 1:
        deep = chance.choice([30, 63, 64, 65, 500, 5000, 200_000])
        opening, closing = chance.choice([(b"[", b"]"), (b'{"a":', b"}")])
        inner = opening * deep + b"1" + closing * deep * (chance.random() < 0.8)
        return text[:-1] + b',"deep":' + inner + b"}"
    if kind == 2:
        place = chance.randrange(len(text))
        return text[:place] + chance.randbytes(2) + text[place + 1 :]
    if kind == 3:
        return text[: chance.randrange(len(text))]
    if kind == 4:
        number = chance.choice([b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"-0", b"1E5"])
        return text[:-1] + b',"temperature":' + number + b"}"
    if kind == 5:
        return text[:-1] + b',"model":"other","model":' + json.dumps(MODEL).encode() + b"}"
    if kind == 6:
        return chance.choice([b"\xff\xfe", b"\xef\xbb\xbf", b"\x00"]) + text
    return text


def test_fuzzed_bodies_never_make_a_500_of_ours() -> None:
    chance = random.Random(20260206)  # noqa: S311

    async def scenario() -> None:
        async with world(
            rate=1e6,
            chunks=1,
            admission={"expose_tokenize": True, "maxima": {"n": 4, "temperature": 2}},
        ) as w:
            seen: Counter[int] = Counter()

            async def client(bodies: list[tuple[str, bytes]]) -> None:
                for path, text in bodies:
                    answer = await w.post(path=path, raw=text)
                    seen[answer.status] += 1
                    assert answer.status in (200, 400, 404, 413), (path, text[:300], answer)
                    if answer.status != 200:
                        assert answer.error["message"]

            work = [(chance.choice(PATHS), body(chance)) for _ in range(ROUNDS)]
            await asyncio.gather(*(client(work[number::8]) for number in range(8)))
            assert sum(seen.values()) == ROUNDS
            assert seen[200] > 100
            assert seen[400] > 300
            # Every document that passed is one that another parser reads the same way.
            for _, _, document in w.engines[0].requests:
                json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
            assert "ERROR" not in w.log

    asyncio.run(scenario())
