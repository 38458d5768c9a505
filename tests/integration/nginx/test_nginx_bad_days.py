"""Limits reached, parts that are down, drains: a real Nginx when not all is well."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

from tests.integration.nginx.running import CHUNKS, Gateway, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

ORIGIN = "https://app.example.com"
JSON = {"Content-Type": "application/json"}
OTHER_KEY = "sk-" + "a" * 51


class TestLimits:
    def test_per_address(self, start_gateway: Callable[..., Gateway]) -> None:
        gateway = start_gateway(rate_limit={"ip_per_minute": 6, "ip_burst": 3})
        answers = [
            gateway.request("GET", "/v1/models", headers={"Origin": ORIGIN}) for _ in range(6)
        ]
        assert [answer.status for answer in answers] == [401] * 4 + [429] * 2
        refused = answers[-1]
        assert refused.error_code() == "rate_limit_exceeded"
        assert refused.header("Retry-After") == "10"
        assert refused.header("Access-Control-Allow-Origin") == ORIGIN
        preflight = gateway.request("OPTIONS", "/v1/models", headers={"Origin": ORIGIN})
        assert preflight.status == 204
        # /health has an account of its own, and it is not without end.
        assert gateway.request("GET", "/health").status == 200
        statuses = [gateway.request("GET", "/health").status for _ in range(8)]
        assert statuses[-1] == 429

    def test_per_key(
        self, start_gateway: Callable[..., Gateway], authorized: dict[str, str]
    ) -> None:
        gateway = start_gateway(rate_limit={"key_per_minute": 6, "key_burst": 2})
        shouted = {"Authorization": authorized["Authorization"].replace("Bearer ", "BEARER  ")}
        statuses = [
            gateway.request("GET", "/v1/models", headers=headers).status
            for headers in (authorized, shouted, authorized, shouted, authorized)
        ]
        assert statuses == [200, 200, 200, 429, 429]
        # Another key, and none, are not counted with it.
        other = {"Authorization": f"Bearer {OTHER_KEY}"}
        assert gateway.request("GET", "/v1/models", headers=other).status == 401
        assert [gateway.request("GET", "/v1/models").status for _ in range(5)] == [401] * 5


class TestBadDays:
    def test_auth_service_down(self, gateway: Gateway, authorized: dict[str, str]) -> None:
        gateway.stop_auth(signal.SIGKILL)
        before = len(gateway.engine.seen)
        answer = gateway.request("GET", "/v1/models", headers=authorized)
        assert answer.status == 503
        assert answer.error_code() == "authentication_unavailable"
        assert answer.header("Retry-After") == "10"
        assert len(gateway.engine.seen) == before
        assert gateway.request("GET", "/health").status == 200
        gateway.start_auth()
        assert gateway.request("GET", "/v1/models", headers=authorized).status == 200

    def test_auth_service_without_a_table(
        self, start_gateway: Callable[..., Gateway], authorized: dict[str, str]
    ) -> None:
        gateway = start_gateway()
        gateway.stop_auth()
        gateway.keys_file.write_text("{")
        gateway.start_auth()
        answer = gateway.request("GET", "/v1/models", headers=authorized)
        assert answer.status == 503
        assert answer.error_code() == "authentication_unavailable"

    def test_auth_service_stuck(self, gateway: Gateway, authorized: dict[str, str]) -> None:
        assert gateway._auth is not None
        gateway._auth.send_signal(signal.SIGSTOP)
        try:
            answer = gateway.request("GET", "/v1/models", headers=authorized)
        finally:
            gateway._auth.send_signal(signal.SIGCONT)
        assert answer.status == 503
        assert answer.error_code() == "authentication_unavailable"

    def test_engine_down(self, gateway: Gateway, authorized: dict[str, str]) -> None:
        gateway.engine.stop()
        for path, method in [("/v1/completions", "POST"), ("/health", "GET")]:
            headers = authorized | {"Origin": ORIGIN}
            answer = gateway.request(method, path, b"{}" if method == "POST" else None, headers)
            assert answer.status == 503
            assert answer.error_code() == "engine_unavailable"
            assert answer.header("Retry-After") == "10"
            assert answer.header("Access-Control-Allow-Origin") == ORIGIN
        gateway.engine.path.unlink(missing_ok=True)
        gateway.engine.start()
        assert gateway.request("GET", "/health").status == 200

    def test_engine_silent(
        self, start_gateway: Callable[..., Gateway], authorized: dict[str, str]
    ) -> None:
        gateway = start_gateway(read_timeout_seconds=1)
        gateway.engine.silent_seconds = 1.5
        before = len(gateway.engine.seen)
        connection = gateway.request(
            "POST", "/v1/completions", b'{"hang": true}', authorized | JSON
        )
        assert connection.status == 504
        assert connection.error_code() == "engine_timeout"
        assert connection.header("Retry-After") is None
        assert len(gateway.engine.seen) == before + 1, "a POST was sent twice"

    def test_drain_refuses_new_requests_and_lets_streams_end(
        self, gateway: Gateway, authorized: dict[str, str]
    ) -> None:
        lines: list[bytes] = []
        begun = threading.Event()

        def read() -> None:
            for _, line in gateway.stream(authorized | JSON):
                lines.append(line)
                begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(5)
        gateway.drain_flag.touch()
        answer = gateway.request("POST", "/v1/chat/completions", b"{}", authorized)
        assert len(lines) < CHUNKS, "the stream was over before the drain was tried"
        assert answer.status == 503
        assert answer.error_code() == "engine_draining"
        assert answer.header("Retry-After") == "10"
        health = gateway.request("GET", "/health")
        assert (health.status, health.error_code()) == (503, "engine_draining")
        reader.join(10)
        assert lines[-1] == b"data: [DONE]"
        gateway.drain_flag.unlink()
        assert gateway.request("GET", "/health").status == 200
        assert gateway.request("GET", "/v1/models", headers=authorized).status == 200

    def test_a_client_that_leaves_is_noticed_upstream(
        self, gateway: Gateway, authorized: dict[str, str]
    ) -> None:
        before = gateway.engine.disconnected
        stream = gateway.stream(authorized | JSON)
        next(stream)
        stream.close()  # type: ignore[attr-defined]  # a generator
        wait_until(lambda: gateway.engine.disconnected > before, "the engine's notice", 5)

    def test_a_key_is_revoked_without_a_reload(
        self, start_gateway: Callable[..., Gateway], authorized: dict[str, str]
    ) -> None:
        gateway = start_gateway()
        assert gateway.request("GET", "/v1/models", headers=authorized).status == 200
        gateway.keys_file.write_text('{"schema": 1, "serial": 2, "keys": []}')

        def revoked() -> bool:
            return gateway.request("GET", "/v1/models", headers=authorized).status == 401

        wait_until(revoked, "the revocation", 1.0)
