"""Nothing reaches an engine without a valid key: attempts by the thousand, in both modes."""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import h2.config
import h2.connection
import h2.exceptions
import pytest

from tests.integration.nginx.attempts import LISTED, UNLISTED, Attempt, attempts
from tests.integration.nginx.full_mode import FullGateway, chat
from tests.integration.nginx.running import Gateway, tls

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

JSON = {"Content-Type": "application/json"}
# For what is waited in vain, where an attempt is no whole request.
PATIENCE_SECONDS = 0.3
AT_ONCE = 16

Headers = list[tuple[bytes, bytes]]


@pytest.fixture(scope="module", params=["full", "direct"])
def tried(request: pytest.FixtureRequest, start_gateway: Callable[..., Gateway]) -> Gateway:
    """A gateway with everything that can be opened open."""
    return start_gateway(mode=request.param, tokenize=True)


def reached(gateway: Gateway) -> list[Any]:
    """What the engine was sent, but for the one thing that needs no key: GET /health, which in mode
    direct is the engine's own."""
    if isinstance(gateway, FullGateway):
        return gateway.full_engine.stub.requests
    return [
        one
        for one in gateway.engine.seen
        if (one["method"], one["target"].split("?")[0]) != ("GET", "/health")
    ]


CONTEXT = tls()


def send(gateway: Gateway, attempt: Attempt) -> bytes:
    """Everything that comes back until the end of the connection, or of patience."""
    port = gateway.http_port if attempt.plain else gateway.https_port
    found = b""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        channel = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        if not attempt.plain:
            channel = stack.enter_context(
                CONTEXT.wrap_socket(channel, server_hostname="llm.example.com")
            )
        channel.settimeout(PATIENCE_SECONDS)
        channel.sendall(attempt.data)
        while part := channel.recv(65536):
            found += part
    return found


def statuses(answer: bytes) -> list[int]:
    """Of all answers on one connection."""
    parts = answer.split(b"HTTP/1.1 ")[1:]
    return [int(part[:3]) for part in parts if part[:3].isdigit()]


def test_a_thousand_attempts(
    tried: Gateway, key: tuple[str, dict[str, Any]], authorized: dict[str, str]
) -> None:
    made = attempts(key[0])
    assert len(made) >= 1000
    assert len({one.data for one in made}) >= 1000
    before = len(reached(tried))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda one: send(tried, one), made))
    after = reached(tried)[before:]
    assert after == []
    passed = {
        one.name: answer[:200]
        for one, answer in zip(made, answers, strict=True)
        if any(200 <= code < 300 and not is_open(one, answer) for code in statuses(answer))
        or b"token " in answer
        or b"vllm:" in answer
    }
    assert passed == {}
    # Not one of them brought anything down, and most were answered in words.
    assert sum(bool(statuses(answer)) for answer in answers) > len(made) * 0.8
    assert not [one.name for one, answer in zip(made, answers, strict=True) if b" 500 " in answer]
    # The same with the key does arrive: what counts does count.
    answer = tried.request("POST", "/v1/completions", chat(prompt="x"), authorized | JSON)
    assert answer.status == 200
    assert len(reached(tried)) > before


def is_open(attempt: Attempt, answer: bytes) -> bool:
    """Whether what was answered is what everybody may have: preflights, and /health."""
    return attempt.data.startswith((b"OPTIONS ", b"GET /health ")) and answer.count(b" 200 OK") <= 1


def over_http2(gateway: Gateway, headers: Headers, body: bytes) -> tuple[int | None, bytes]:
    """(status, body) of one request on one HTTP/2 connection; None without an answer. The checks
    of the client's own library are off: it sends what it is told."""
    context = tls()
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", gateway.https_port), 10) as raw:
        channel = context.wrap_socket(raw, server_hostname="llm.example.com")
        assert channel.selected_alpn_protocol() == "h2"
        channel.settimeout(PATIENCE_SECONDS)
        configuration = h2.config.H2Configuration(
            header_encoding=None,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
            validate_inbound_headers=False,
        )
        connection = h2.connection.H2Connection(configuration)
        connection.initiate_connection()
        connection.send_headers(1, headers, end_stream=not body)
        if body:
            connection.send_data(1, body, end_stream=True)
        channel.sendall(connection.data_to_send())
        return _answer(connection, channel)


def _answer(connection: Any, channel: ssl.SSLSocket) -> tuple[int | None, bytes]:
    status, content = None, b""
    with contextlib.suppress(OSError, h2.exceptions.ProtocolError):
        while part := channel.recv(65536):
            for event in connection.receive_data(part):
                kind = type(event).__name__
                if kind == "ResponseReceived":
                    status = int(dict(event.headers)[b":status"])
                elif kind == "DataReceived":
                    content += event.data
                elif kind in ("StreamEnded", "StreamReset", "ConnectionTerminated"):
                    return status, content
    return status, content


def http2_attempts(key: str) -> list[tuple[Headers, bytes]]:
    """Requests that only HTTP/2 can put in such words."""
    good = b"Bearer " + key.encode()
    body = chat()
    found: list[tuple[Headers, bytes]] = []

    def add(path: bytes, *more: tuple[bytes, bytes], method: bytes = b"POST") -> None:
        base = [
            (b":method", method), (b":scheme", b"https"), (b":authority", b"llm.example.com"),
            (b":path", path), (b"content-type", b"application/json"),
        ]  # fmt: skip
        found.append(([*base, *more], body))

    tricks: list[tuple[tuple[bytes, bytes], ...]] = [
        (),
        ((b"transfer-encoding", b"chunked"),),
        ((b"content-length", b"0"),),
        ((b"content-length", b"4"), (b"transfer-encoding", b"chunked")),
        ((b"connection", b"keep-alive"),),
        ((b"Authorization", good),),
        ((b"authorization", b""), (b"authorization", good)),
        ((b"authorization", good), (b"authorization", b"Bearer x")),
        ((b"x", b"y\r\nauthorization: " + good),),
        ((b"x\r\nauthorization", good),),
        ((b"x\nauthorization: " + good + b"\ny", b"z"),),
        ((b":path", b"/health"),),
        ((b":method", b"OPTIONS"),),
        ((b"x-api-key", good),),
        ((b"cookie", b"authorization=" + good),),
        ((b"te", b"trailers"), (b"upgrade", b"h2c")),
        ((b"host", b"engine"),),
        ((b"x", b"a" * 20000),),
    ]
    for path in LISTED:
        for trick in tricks:
            add(path.encode(), *trick)
        for spelling in (b"//x" + path.encode(), path.encode() + b" HTTP/1.1\r\nX: y", b"/.."):
            add(spelling)
        for method in (b"GET", b"POST /health HTTP/1.1\r\nX: y\r\n\r\nGET", b"", b"CONNECT"):
            add(path.encode(), method=method)
    for path in UNLISTED:
        add(path.encode(), (b"authorization", good), method=b"GET")
    return found


def test_the_same_over_http2(
    tried: Gateway, key: tuple[str, dict[str, Any]], authorized: dict[str, str]
) -> None:
    before = len(reached(tried))
    made = http2_attempts(key[0])
    assert len(made) >= 150
    answered = 0
    for headers, body in made:
        status, content = over_http2(tried, headers, body)
        assert status is None or status >= 400, headers
        assert b"token " not in content
        answered += status is not None
    assert answered > len(made) / 3
    assert reached(tried)[before:] == []
    good = (b"authorization", authorized["Authorization"].encode())
    control = [(name, value) for name, value in made[0][0]]
    status, content = over_http2(tried, [*control, good], chat())
    assert status == 200
    assert len(reached(tried)) > before
