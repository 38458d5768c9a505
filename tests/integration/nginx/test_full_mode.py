"""gateway.mode full: what Nginx promises, with the real service behind it."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.nginx.full_mode import MODEL, FullGateway, chat
from tests.integration.nginx.running import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ORIGIN = "https://app.example.com"
JSON = {"Content-Type": "application/json"}
CHAT = "/v1/chat/completions"


@pytest.fixture
def slow_engine(full_gateway: FullGateway) -> Iterator[FullGateway]:
    """The shared one, for a test whose streams are to last."""
    stub = full_gateway.full_engine.stub
    rate, chunks = stub.rate, stub.chunks
    stub.rate = 10
    yield full_gateway
    stub.rate, stub.chunks = rate, chunks


@pytest.fixture(scope="module")
def without_service(start_gateway: Callable[..., FullGateway]) -> FullGateway:
    gateway = start_gateway(mode="full")
    gateway.stop_auth()
    return gateway


def test_a_request_with_a_key_is_answered(
    full_gateway: FullGateway, authorized: dict[str, str]
) -> None:
    answer = full_gateway.request("POST", CHAT, chat(), authorized | JSON)
    assert answer.status == 200
    assert json.loads(answer.body)["choices"]
    assert answer.header("X-Prompt-Token-Count") == "4"  # as the stub counts
    assert answer.header("Strict-Transport-Security") == "max-age=63072000"
    assert answer.header("Server") == "nginx"


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/responses", {"input": "x"}),
    ],
)
def test_the_other_addresses(
    full_gateway: FullGateway, authorized: dict[str, str], path: str, document: dict[str, Any]
) -> None:
    body = json.dumps({"model": MODEL, **document}).encode()
    assert full_gateway.request("POST", path, body, authorized | JSON).status == 200
    assert full_gateway.full_engine.reached()[-1][0] == path


def test_models_are_those_of_the_service(
    full_gateway: FullGateway, authorized: dict[str, str]
) -> None:
    answer = full_gateway.request("GET", "/v1/models", headers=authorized)
    assert [one["id"] for one in json.loads(answer.body)["data"]] == [MODEL]


def test_the_engine_gets_neither_the_key_nor_what_would_steer_it(
    full_gateway: FullGateway, authorized: dict[str, str]
) -> None:
    extra = {
        "Cookie": "session=1",
        "Origin": ORIGIN,
        "X-Request-Id": "chosen by the client",
        "X-data-parallel-rank": "3",
        "Accept-Encoding": "gzip",
        "traceparent": "00-1-2-01",
    }
    answer = full_gateway.request("POST", CHAT, chat(), authorized | JSON | extra)
    path, headers, _ = full_gateway.full_engine.reached()[-1]
    assert path == CHAT
    # The last two are the service's own.
    assert set(headers) == {
        *("host", "content-type", "content-length", "x-request-id", "traceparent"),
        *("accept", "accept-encoding"),
    }
    assert headers["accept-encoding"] == "identity"
    assert answer.header("X-Request-Id") == headers["x-request-id"]
    assert len(headers["x-request-id"]) == 32


def test_the_key_id_is_in_the_log_and_not_in_the_answer(
    full_gateway: FullGateway, authorized: dict[str, str], key: tuple[str, dict[str, Any]]
) -> None:
    answer = full_gateway.request("POST", CHAT + "?api_key=hidden", chat(), authorized | JSON)
    assert answer.all("X-Key-Id") == []
    request_id = answer.header("X-Request-Id")
    assert request_id is not None
    wait_until(lambda: request_id in full_gateway.access_log.read_text(), "the log")
    (line,) = [x for x in full_gateway.log_lines() if x["request_id"] == request_id]
    assert line["key_id"] == key[1]["keys"][0]["id"]
    assert line["path"] == CHAT
    for log in full_gateway.directory.glob("*.log"):
        assert key[0][11:] not in log.read_text(), log
    assert "hidden" not in full_gateway.access_log.read_text()


def test_without_a_good_key_401_before_the_body(full_gateway: FullGateway) -> None:
    before = len(full_gateway.full_engine.reached())
    # The body never comes: the service does not wait for it.
    for _ in range(20):
        answer = full_gateway.raw(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n"
            b"Content-Type: application/json\r\nOrigin: " + ORIGIN.encode() + b"\r\n"
            b"Authorization: Bearer sk-" + b"a" * 51 + b"\r\n\r\n{"
        )
        assert answer.status == 401
        assert answer.error_code() == "invalid_api_key"
        assert answer.header("WWW-Authenticate") == "Bearer"
        assert answer.header("Access-Control-Allow-Origin") == ORIGIN
    # And one that comes all the same, to its end.
    for _ in range(20):
        answer = full_gateway.request("POST", "/v1/completions", b" " * 900_000, JSON)
        assert answer.status == 401
    assert len(full_gateway.full_engine.reached()) == before


@pytest.mark.parametrize(
    "target",
    [
        *("/", "/metrics", "/ready", "/auth", "/version", "/tokenize", "/detokenize", "/v1"),
        *("//v1/models", "/v1/%6dodels", "/health/../metrics", "/health%2f..%2fmetrics"),
        *("/_llm/auth", "/_llm/bad_request", "http://engine/metrics", "/Ready", "/ready/"),
    ],
)
def test_what_is_not_listed_does_not_exist(
    full_gateway: FullGateway, authorized: dict[str, str], target: str
) -> None:
    request = (
        f"GET {target} HTTP/1.1\r\nHost: llm.example.com\r\nConnection: close\r\n"
        f"Authorization: {authorized['Authorization']}\r\n\r\n"
    )
    answer = full_gateway.raw(request.encode())
    assert answer.status == 404
    assert answer.error_code() == "unknown_url"


def test_tokenize_by_choice(
    start_gateway: Callable[..., FullGateway], authorized: dict[str, str]
) -> None:
    gateway = start_gateway(mode="full", tokenize=True)
    body = json.dumps({"model": MODEL, "prompt": "a b c"}).encode()
    answer = gateway.request("POST", "/tokenize", body, authorized | JSON)
    assert answer.status == 200
    assert json.loads(answer.body)["count"] == 3
    assert gateway.request("POST", "/tokenize", body, JSON).status == 401


def test_a_stream_arrives_spread_over_time(
    slow_engine: FullGateway, authorized: dict[str, str]
) -> None:
    completed = slow_engine.full_engine.stub.completed
    arrived = []
    for at, line in slow_engine.stream(authorized | JSON, chat(stream=True)):
        arrived.append((at, line))
        # The engine has not sent the rest yet: nothing between it and here waits for more.
        if len(arrived) == 2:
            assert slow_engine.full_engine.stub.completed == completed
    assert arrived[-1][1] == b"data: [DONE]"
    assert arrived[-2][0] - arrived[0][0] > 0.2


def test_limits_are_those_of_nginx_too(
    start_gateway: Callable[..., FullGateway], authorized: dict[str, str]
) -> None:
    gateway = start_gateway(mode="full", rate_limit={"key_per_minute": 6, "key_burst": 2})
    statuses = [
        gateway.request("GET", "/v1/models", headers=authorized | {"Origin": ORIGIN}).status
        for _ in range(5)
    ]
    assert statuses == [200, 200, 200, 429, 429]
    answer = gateway.request("GET", "/v1/models", headers=authorized | {"Origin": ORIGIN})
    assert answer.error_code() == "rate_limit_exceeded"
    assert answer.header("Retry-After") == "10"
    assert answer.header("Access-Control-Allow-Origin") == ORIGIN


def test_how_long_to_wait_is_said_once_and_by_the_service_where_it_knows(
    start_gateway: Callable[..., FullGateway], key: tuple[str, dict[str, Any]]
) -> None:
    gateway = start_gateway(mode="full")
    document = json.loads(json.dumps(key[1]))
    document["serial"] += 1
    document["keys"][0]["requests_per_minute"] = 1
    gateway.keys_file.write_text(json.dumps(document))
    headers = {"Authorization": f"Bearer {key[0]}", "Origin": ORIGIN}
    wait_until(
        lambda: gateway.request("GET", "/v1/models", headers=headers).status == 429, "the limit"
    )
    answer = gateway.request("GET", "/v1/models", headers=headers)
    assert answer.status == 429
    told = answer.header("Retry-After")
    assert told is not None
    assert 10 < int(told) <= 60
    assert answer.header("Access-Control-Allow-Origin") == ORIGIN


def test_a_body_that_is_too_large(full_gateway: FullGateway, authorized: dict[str, str]) -> None:
    answer = full_gateway.raw(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n"
        b"Content-Type: application/json\r\nOrigin: " + ORIGIN.encode() + b"\r\n"
        b"Authorization: " + authorized["Authorization"].encode() + b"\r\n\r\n"
    )
    assert answer.status == 413
    assert answer.error_code() == "request_too_large"
    assert answer.header("Access-Control-Allow-Origin") == ORIGIN
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    answer = full_gateway.raw(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Type: application/json\r\n"
        b"Authorization: "
        + authorized["Authorization"].encode()
        + b"\r\n\r\n"
        + chunk * 17
        + b"0\r\n\r\n"
    )
    assert answer.status == 413
    assert answer.error_code() == "request_too_large"
    prompt = "x" * 1_000_000
    body = json.dumps({"model": MODEL, "prompt": prompt}).encode()
    assert full_gateway.request("POST", "/v1/completions", body, authorized | JSON).status == 200
    assert not list(full_gateway.directory.glob("client_body/*")), "a prompt was written to a file"


def test_preflight_needs_no_key_and_does_not_reach_the_service(
    without_service: FullGateway,
) -> None:
    answer = without_service.request(
        "OPTIONS", CHAT, headers={"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    )
    assert answer.status == 204
    assert answer.header("Access-Control-Allow-Origin") == ORIGIN
    assert answer.header("Allow") == "POST, OPTIONS"


class TestBadDays:
    def test_service_down(self, without_service: FullGateway, authorized: dict[str, str]) -> None:
        for method, path, body in [("POST", CHAT, chat()), ("GET", "/health", None)]:
            answer = without_service.request(
                method, path, body, authorized | JSON | {"Origin": ORIGIN}
            )
            assert answer.status == 503
            assert answer.error_code() == "gateway_unavailable"
            assert answer.header("Retry-After") == "10"
            assert answer.header("Access-Control-Allow-Origin") == ORIGIN

    def test_engine_down(self, full_gateway: FullGateway, authorized: dict[str, str]) -> None:
        full_gateway.full_engine.stop()
        answer = full_gateway.request("POST", CHAT, chat(), authorized | JSON | {"Origin": ORIGIN})
        full_gateway.full_engine.start()
        assert answer.status == 503
        assert "error" in json.loads(answer.body)
        assert answer.header("Retry-After")
        assert answer.header("Access-Control-Allow-Origin") == ORIGIN
        wait_until(
            lambda: full_gateway.request("GET", "/health").status == 200, "the engine's return"
        )

    def test_engine_silent(
        self, start_gateway: Callable[..., FullGateway], authorized: dict[str, str]
    ) -> None:
        gateway = start_gateway(mode="full", read_timeout_seconds=1)
        gateway.full_engine.stub.mode = "hang"
        before = len(gateway.full_engine.reached())
        answer = gateway.request("POST", CHAT, chat(), authorized | JSON)
        assert answer.status == 504
        assert answer.error_code() == "engine_timeout"
        assert len(gateway.full_engine.reached()) == before + 1, "a POST was sent twice"

    def test_drain_of_the_gateway_lets_streams_end(
        self, slow_engine: FullGateway, authorized: dict[str, str]
    ) -> None:
        gateway, completed = slow_engine, slow_engine.full_engine.stub.completed
        lines: list[bytes] = []
        begun = threading.Event()

        def read() -> None:
            for _, line in gateway.stream(authorized | JSON, chat(stream=True)):
                lines.append(line)
                begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(5)
        gateway.drain_flag.touch()
        answer = gateway.request("POST", CHAT, chat(), authorized | JSON)
        assert gateway.full_engine.stub.completed == completed, "it ended before the drain"
        assert answer.status == 503
        assert answer.error_code() == "engine_draining"
        assert gateway.request("GET", "/health").status == 503
        reader.join(10)
        assert lines[-1] == b"data: [DONE]"
        gateway.drain_flag.unlink()
        assert gateway.request("GET", "/v1/models", headers=authorized).status == 200

    def test_drain_of_the_one_engine(
        self, full_gateway: FullGateway, authorized: dict[str, str]
    ) -> None:
        gateway = full_gateway
        gateway.engine_drain_flag.touch()

        def refused() -> bool:
            return gateway.request("POST", CHAT, chat(), authorized | JSON).status == 503

        wait_until(refused, "the drain")
        answer = gateway.request("POST", CHAT, chat(), authorized | JSON)
        assert answer.header("Retry-After")
        gateway.engine_drain_flag.unlink()
        wait_until(lambda: not refused(), "the end of the drain")

    def test_a_client_that_leaves_is_noticed_by_the_engine(
        self, slow_engine: FullGateway, authorized: dict[str, str]
    ) -> None:
        stub = slow_engine.full_engine.stub
        stub.chunks, aborts = 1000, stub.aborts
        stream = slow_engine.stream(authorized | JSON, chat(stream=True))
        next(stream)
        stream.close()  # type: ignore[attr-defined]  # a generator
        wait_until(lambda: stub.aborts > aborts, "the engine's notice", 5)

    def test_a_restart_of_nginx_by_reload_cuts_no_stream(
        self, slow_engine: FullGateway, authorized: dict[str, str]
    ) -> None:
        gateway = slow_engine
        lines: list[bytes] = []
        for _, line in gateway.stream(authorized | JSON, chat(stream=True)):
            if not lines:
                assert gateway._nginx is not None
                gateway._nginx.send_signal(signal.SIGHUP)
                time.sleep(0.2)
                assert gateway.request("GET", "/health").status == 200
            lines.append(line)
        assert lines[-1] == b"data: [DONE]"
