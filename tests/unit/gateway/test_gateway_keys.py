"""Key files and presented keys."""

from __future__ import annotations

import hmac
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from llm_gateway.keys import (
    MAX_NAME_LENGTH,
    KeyFileError,
    bearer_key,
    find_key,
    is_name,
    parse_key_file,
)

from pyinfra_deploy.keys import keyfile

NOW = datetime(2026, 1, 31, 9, tzinfo=UTC)
CREATED = keyfile.new_key("a client", NOW, NOW + timedelta(days=1))
FOREVER = keyfile.new_key("客户端", NOW, None)
DOCUMENT = keyfile.to_document(7, [CREATED.record, FOREVER.record])


def keys() -> dict[str, Any]:
    parsed = parse_key_file(json.dumps(DOCUMENT).encode())
    return {key.id: key for key in parsed.keys}


def test_what_the_control_side_writes_is_read() -> None:
    parsed = parse_key_file(json.dumps(DOCUMENT).encode())
    assert parsed.serial == 7
    assert [key.id for key in parsed.keys] == [CREATED.record.id, FOREVER.record.id]
    assert parsed.keys[0].expires == NOW + timedelta(days=1)
    assert parsed.keys[1].expires is None


def test_limits_of_a_key_are_read_and_may_be_left_out() -> None:
    limits = {"tier": "batch", "models": ["a", "b"], "requests_per_minute": 5}
    document = json.loads(json.dumps(DOCUMENT))
    document["keys"][0] |= limits | {"tokens_per_minute": None}
    limited, free = parse_key_file(json.dumps(document).encode()).keys
    assert (limited.tier, limited.models) == ("batch", frozenset({"a", "b"}))
    assert (limited.requests_per_minute, limited.tokens_per_minute) == (5, None)
    assert (free.tier, free.models, free.requests_per_minute) == (None, None, None)


@pytest.mark.parametrize(
    "name", ["a", "x" * MAX_NAME_LENGTH, "x" * 65, "", " a", "a\n", "a\x7f", "a\u200b", "é 客"]
)
def test_both_sides_accept_the_same_names(name: str) -> None:
    assert is_name(name) == keyfile.is_name(name)


def change(path: list[Any], value: Any) -> bytes:
    document = json.loads(json.dumps(DOCUMENT))
    place = document
    for step in path[:-1]:
        place = place[step]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100000, "not valid JSON"),
        (b"[]", "must be an object"),
        (b'{"schema": 1, "schema": 1}', "twice"),
        (change(["schema"], 2), "schema is 2"),
        (change(["schema"], True), "schema is True"),
        (change(["serial"], -1), "serial"),
        (change(["serial"], True), "serial"),
        (change(["serial"], "7"), "serial"),
        (change(["serial"], KeyError), "serial"),
        (change(["extra"], 1), "extra"),
        (change(["keys"], {}), "keys must be a list"),
        (change(["keys", 0], 1), r"keys\[0\] must be an object"),
        (change(["keys", 1, "allowed_models"], []), r"keys\[1\] must have exactly"),
        (change(["keys", 1, "expires"], KeyError), r"keys\[1\] must have exactly"),
        (change(["keys", 1, "id"], "UPPER123"), r"keys\[1\].id"),
        (change(["keys", 1, "id"], CREATED.record.id), "the same id"),
        (change(["keys", 1, "name"], ""), r"keys\[1\].name"),
        (change(["keys", 1, "sha256"], "0" * 63), r"keys\[1\].sha256"),
        (change(["keys", 1, "sha256"], "0" * 64 + "\n"), r"keys\[1\].sha256"),
        (change(["keys", 1, "created"], "2026-01-31T09:00:00"), r"keys\[1\].created"),
        (change(["keys", 1, "expires"], "tomorrow"), r"keys\[1\].expires"),
        (change(["keys", 1, "expires"], 0), r"keys\[1\].expires"),
        (change(["keys", 1, "tier"], 1), r"keys\[1\].tier"),
        (change(["keys", 1, "tier"], ""), r"keys\[1\].tier"),
        (change(["keys", 1, "models"], []), r"keys\[1\].models"),
        (change(["keys", 1, "models"], "m"), r"keys\[1\].models"),
        (change(["keys", 1, "models"], [1]), r"keys\[1\].models"),
        (change(["keys", 1, "requests_per_minute"], 0), r"keys\[1\].requests_per_minute"),
        (change(["keys", 1, "requests_per_minute"], True), r"keys\[1\].requests_per_minute"),
        (change(["keys", 1, "tokens_per_minute"], 1.5), r"keys\[1\].tokens_per_minute"),
    ],
)
def test_a_file_that_is_not_understood_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(KeyFileError, match=said):
        parse_key_file(content)


def test_a_good_key_is_found_until_it_expires() -> None:
    found = find_key(keys(), CREATED.plaintext, NOW)
    assert found is not None
    assert found.name == "a client"
    assert find_key(keys(), CREATED.plaintext, NOW + timedelta(days=1, seconds=-1))
    assert find_key(keys(), CREATED.plaintext, NOW + timedelta(days=1)) is None
    assert find_key(keys(), FOREVER.plaintext, NOW + timedelta(days=9999))


def test_no_neighbour_of_a_good_key_is_good() -> None:
    known, good = keys(), FOREVER.plaintext
    for index in range(len(good)):
        for other in ("a", "A", "0", "-", "_", "é", "\0", " "):
            if good[index] != other:
                assert find_key(known, good[:index] + other + good[index + 1 :], NOW) is None
    for wrong in (
        "", good[:-1], good + "A", good + "\n", " " + good, good.upper(), good[3:],
        CREATED.plaintext[:11] + good[11:], FOREVER.record.sha256, f"sk-{FOREVER.record.id}",
    ):  # fmt: skip
        assert find_key(known, wrong, NOW) is None


def header(*values: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"x"), *((b"authorization", value) for value in values)]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (header(b"Bearer sk-1"), "sk-1"),
        (header(b"bearer   sk-1"), "sk-1"),
        (header(b"BEARER sk-1"), "sk-1"),
        (header(), None),
        (header(b""), None),
        (header(b"Bearer"), None),
        (header(b"Bearer "), None),
        (header(b"Bearer\tsk-1"), None),
        (header(b"Bearer sk-1 sk-2"), None),
        (header(b"Bearer sk-1, Bearer sk-2"), None),
        (header(b"Bearer sk-1", b"Bearer sk-1"), None),
        (header(b"Bearer sk-1", b""), None),
        (header(b"Basic sk-1"), None),
        (header(b"Bearer sk-\xff"), None),
        (header(b"Bearer sk-1\n"), None),
        (header(b"Bearer " + b"a" * 100_000), None),
    ],
)
def test_exactly_one_bearer_key_is_taken(
    headers: list[tuple[bytes, bytes]], expected: str | None
) -> None:
    assert bearer_key(headers) == expected


def test_keys_are_compared_in_constant_time_known_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """`==` ends at the first byte that differs, and tells by its time how many were right."""
    compared: list[tuple[Any, Any]] = []
    real = hmac.compare_digest

    def compare(one: Any, other: Any) -> bool:
        compared.append((one, other))
        # What does not go by this answer compares in some other way.
        return not real(one, other)

    monkeypatch.setattr("llm_gateway.keys.hmac.compare_digest", compare)
    known = keys()
    stranger = keyfile.new_key("x", NOW, None).plaintext
    wrong = FOREVER.plaintext[:-4] + "AAAA"
    assert find_key(known, FOREVER.plaintext, NOW) is None
    assert find_key(known, wrong, NOW) is not None
    assert find_key(known, stranger, NOW) is None
    assert len(compared) == 3
    assert {len(side) for pair in compared for side in pair} == {32}


def test_random_headers_neither_raise_nor_pass() -> None:
    known, chance = keys(), random.Random(20260131)  # noqa: S311
    good = b"Bearer " + FOREVER.plaintext.encode()
    for _ in range(5000):
        value = bytearray(good)
        for _ in range(chance.randint(1, 5)):
            place = chance.randrange(len(value) + 1)
            how = chance.randrange(3)
            if how == 0:
                value.insert(place, chance.randrange(256))
            elif how == 1 and place < len(value):
                value[place] = chance.randrange(256)
            else:
                del value[place : place + chance.randint(1, 3)]
        presented = bearer_key(header(bytes(value)))
        if presented is not None and presented != FOREVER.plaintext:
            assert find_key(known, presented, NOW) is None
