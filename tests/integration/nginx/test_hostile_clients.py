"""Clients that mean harm, or are merely broken, through the whole way of mode full."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.gateway.test_gateway_fuzz import PATHS, body
from tests.integration.nginx.full_mode import FullGateway, chat
from tests.integration.nginx.running import tls, wait_until

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

JSON = {"Content-Type": "application/json"}
ROUNDS = 600
# Of the 256 connections that Nginx may have in these tests, towards both sides together.
SLOW_HEADERS, SLOW_BODIES = 100, 40


@pytest.fixture(scope="module")
def shared(start_gateway: Callable[..., FullGateway]) -> FullGateway:
    gateway = start_gateway(mode="full", tokenize=True)
    gateway.full_engine.stub.chunks = 1
    return gateway


def test_fuzzed_bodies_never_make_a_500_of_ours(
    shared: FullGateway, authorized: dict[str, str]
) -> None:
    gateway = shared
    chance = random.Random(20260207)  # noqa: S311
    seen: Counter[int] = Counter()
    connection = http.client.HTTPSConnection(
        "127.0.0.1", gateway.https_port, timeout=20, context=tls()
    )
    with contextlib.closing(connection):
        for _ in range(ROUNDS):
            path, text = chance.choice(PATHS), body(chance)
            connection.request("POST", path, text, authorized | JSON)
            response = connection.getresponse()
            content = response.read()
            seen[response.status] += 1
            assert response.status in (200, 400, 404, 413), (path, text[:300], content)
            if response.status != 200:
                assert json.loads(content)["error"]["message"]
    assert seen[200] > 30
    assert seen[400] > 100


def held_open(gateway: FullGateway, data: bytes) -> ssl.SSLSocket:
    raw = socket.create_connection(("127.0.0.1", gateway.https_port), 10)
    channel = tls().wrap_socket(raw, server_hostname="llm.example.com")
    channel.sendall(data)
    return channel


def is_waiting(channel: ssl.SSLSocket) -> bool:
    """Whether nothing has come back on it yet."""
    channel.settimeout(0.01)
    try:
        channel.recv(1)
    except TimeoutError:
        return True
    except OSError:
        return False
    return False


def test_slow_headers_and_slow_bodies_keep_nobody_waiting(
    shared: FullGateway, authorized: dict[str, str]
) -> None:
    gateway = shared
    line = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    key = b"Authorization: " + authorized["Authorization"].encode() + b"\r\n"
    slow = [held_open(gateway, line + b"X-Slow: ") for _ in range(SLOW_HEADERS)]
    slow += [
        held_open(gateway, line + key + b"Content-Length: 100000\r\n\r\n{")
        for _ in range(SLOW_BODIES)
    ]
    try:
        for _ in range(20):
            answer = gateway.request("POST", "/v1/chat/completions", chat(), authorized | JSON)
            assert answer.status == 200
        # They are all still there: it was not their end that let the others through.
        assert sum(is_waiting(channel) for channel in slow) == len(slow)
    finally:
        for channel in slow:
            channel.close()
    # And their end frees what they held: the service waits for none of them.
    wait_until(lambda: gateway.request("GET", "/health").status == 200, "the end of the slow ones")


def test_nothing_of_a_client_forges_the_log(
    start_gateway: Callable[..., FullGateway], authorized: dict[str, str]
) -> None:
    gateway = start_gateway(mode="full")
    forged = '","status":200,"key_id":"admin","x":"'
    lines = [
        f"GET /{forged} HTTP/1.1\r\nHost: x\r\n",
        f"GET /v1/models HTTP/1.1\r\nHost: {forged}\r\n",
        f"GET /v1/models HTTP/1.1\r\nHost: x\r\nUser-Agent: {forged}\r\n",
        f"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Key-Id: {forged}\r\n",
        f"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Request-Id: {forged}\r\n",
        "GET /v1/models HTTP/1.1\r\nHost: x\r\nUser-Agent: \x01\x1b[31m\x7f\xff\r\n",
        "GET /a%0d%0a%22%2c%22status%22%3a200 HTTP/1.1\r\nHost: x\r\n",
        f"{'A' * 20}{forged.replace(' ', '')} / HTTP/1.1\r\nHost: x\r\n",
        'GET /v1/models\n{"status":200} HTTP/1.1\r\nHost: x\r\n',
    ]
    for line in lines:
        with contextlib.suppress(OSError, http.client.HTTPException):
            gateway.raw(line.encode("latin-1") + b"Connection: close\r\n\r\n")
    document: dict[str, Any] = {"model": f"no\nsuch{forged}", "prompt": "the secret prompt"}
    answer = gateway.request(
        "POST", "/v1/completions", json.dumps(document).encode(), authorized | JSON
    )
    assert answer.status == 404
    request_id = str(answer.header("X-Request-Id"))
    wait_until(lambda: request_id in gateway.access_log.read_text(), "the log")
    text = gateway.access_log.read_bytes()
    assert all(32 <= byte < 127 or byte == 10 for byte in text)
    found = gateway.log_lines()  # each line is JSON by itself
    assert not [one for one in found if one["key_id"] == "admin" or "x" in one]
    assert [one["status"] for one in found if one["request_id"] == request_id] == [404]
    assert not [one for one in found[1:] if one["status"] == 200 and one["path"] != "/health"]
    for log in gateway.directory.glob("*.log"):
        assert b"the secret prompt" not in log.read_bytes()
