"""Usage: read from any chunks, written into the final event alone."""

from __future__ import annotations

import json
import random

import pytest
from llm_gateway.usage import (
    MAX_HELD_BYTES,
    Usage,
    UsageReader,
    UsageWriter,
    extended_document,
    extended_event,
    is_final_usage,
)

TEXT = [
    b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n',
    # A text that tries to look like usage.
    b'data: {"choices":[{"delta":{"content":"\\"usage\\":{\\"completion_tokens\\":99"}}]}\n\n',
    # continuous_usage_stats: usage with every choice is no final one.
    b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n',
]
FINAL = (
    b'data: {"id":"\xc3\xa9","choices":[],'
    b'"usage":{"prompt_tokens":7,"total_tokens":12,"completion_tokens":5}}\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAM = b"".join(TEXT) + FINAL + DONE


def cuts(chance: random.Random, text: bytes) -> list[bytes]:
    places = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randrange(12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True) if a < b]


def through(writer: UsageWriter, chunks: list[bytes]) -> bytes:
    passed = b""
    for chunk in chunks:
        given = chunk
        while True:
            pieces, final = writer.feed(given)
            passed += b"".join(pieces)
            if final is None:
                break
            passed += extended_event(final, 41.5)
            given = b""
    return passed + writer.rest()


def test_whatever_the_chunks_only_the_final_usage_is_touched() -> None:
    chance = random.Random(7)  # noqa: S311
    expected = b"".join(TEXT) + FINAL.replace(b":5}}", b':5,"kv_cache_usage_percent":41.5}}') + DONE
    for _ in range(500):
        assert through(UsageWriter(), cuts(chance, STREAM)) == expected


@pytest.mark.parametrize(
    "stream",
    [
        b"".join(TEXT) + DONE,
        b"".join(TEXT)[:-30],
        b"not a stream at all",
        b'data: {"choices":[],"usage":null}\n\n' + DONE,
        b'data: {"choices":[],"usage":{broken\n\n' + DONE,
        b'event: x\ndata: {"choices":[],"usage":{}}\n\n',
        b': comment "usage":{\n\n',
    ],
)
def test_what_is_no_final_usage_passes_as_it_is(stream: bytes) -> None:
    chance = random.Random(8)  # noqa: S311
    for _ in range(50):
        assert through(UsageWriter(), cuts(chance, stream)) == stream


def test_nothing_is_held_that_is_complete() -> None:
    assert UsageWriter().feed(TEXT[0] + TEXT[1][:20]) == ([TEXT[0]], None)


def test_an_endless_event_is_passed_in_the_end() -> None:
    writer = UsageWriter()
    assert writer.feed(b"x" * MAX_HELD_BYTES) == ([], None)
    pieces, final = writer.feed(b"y")
    assert (len(b"".join(pieces)), final) == (MAX_HELD_BYTES + 1, None)


def test_reading_usage_from_an_event_torn_anywhere() -> None:
    for place in range(len(FINAL) + 1):
        reader = UsageReader()
        for chunk in (b"".join(TEXT), FINAL[:place], FINAL[place:], DONE):
            reader.feed(chunk)
        assert reader.usage() == Usage(7, 5)


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([STREAM], Usage(7, 5)),
        ([*TEXT, FINAL, DONE], Usage(7, 5)),
        ([*TEXT, FINAL[:60], FINAL[60:], DONE], Usage(7, 5)),
        ([b'{"choices":[],"usage":{"prompt_tokens":3,"total_tokens":3}}'], Usage(3, 0)),
        ([b'{"usage":{"input_tokens":3,"output_tokens":4}}'], Usage(3, 4)),
        ([TEXT[0], TEXT[1], DONE], None),
        ([], None),
        ([b'{"usage":{"prompt_tokens":"many"}}'], None),
    ],
)
def test_reading_usage(chunks: list[bytes], expected: Usage | None) -> None:
    reader = UsageReader()
    for chunk in chunks:
        reader.feed(chunk)
    assert reader.usage() == expected


def test_events_are_counted() -> None:
    reader = UsageReader()
    assert not reader.ended_an_event()
    reader.feed(b"".join(TEXT))
    assert (reader.events, reader.ended_an_event()) == (3, True)
    reader.feed(FINAL[:10])
    assert (reader.events, reader.ended_an_event()) == (3, False)


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        (b'{"choices":[1],"usage":{"prompt_tokens":1}}', True),
        (b'{"choices":[1],"usage":null}', False),
        (b'{"choices":[1]}', False),
        (b'{"usage":{"prompt', False),
        (b"[1]", False),
        (b"", False),
    ],
)
def test_documents(body: bytes, changes: bool) -> None:
    extended = extended_document(body, 41.5)
    assert (extended != body) == changes
    if changes:
        expected = json.loads(body)
        expected["usage"]["kv_cache_usage_percent"] = 41.5
        assert json.loads(extended) == expected
    assert extended_document(body, None) == body


def test_an_event_stays_as_it_is_when_the_use_is_not_known() -> None:
    assert is_final_usage(FINAL)
    assert extended_event(FINAL, None) == FINAL
