"""gateway.auth.url in mode direct: an organisation's own service decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.nginx.conftest import write_certificate
from tests.integration.nginx.organisation import NAME, AuthService, name_server
from tests.integration.nginx.running import has_ipv6, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.integration.nginx.running import Gateway

KEY = {"Authorization": "Bearer whatever-the-organisation-uses"}


@pytest.fixture(scope="module")
def service(prefix: Path) -> Iterator[AuthService]:
    place = prefix / "organisation"
    place.mkdir()
    write_certificate(place, NAME)
    started = AuthService(place / "tls.crt", place / "tls.key")
    yield started
    started.stop()


@pytest.fixture
def behind(
    service: AuthService, prefix: Path, start_gateway: Callable[..., Gateway]
) -> Iterator[Callable[..., Gateway]]:
    """Starts a gateway whose Nginx asks the service; `ca`, `name`, `address`: what is wrong."""
    service.status, service.delay_seconds = 200, 0.0
    stack: list[Any] = []

    def start(
        ca: str = "organisation/tls.crt", name: str = NAME, address: str | None = "127.0.0.1"
    ) -> Gateway:
        names = name_server(address)
        port = names.__enter__()
        stack.append(names)
        ipv6 = "" if has_ipv6() else " ipv6=off"
        return start_gateway(
            {f"resolver 127.0.0.1 valid=60s{ipv6};": f"resolver 127.0.0.1:{port} ipv6=off;"},
            auth={
                "url": f"https://{name}:{service.port}/llm/check",
                "ca_file": str(prefix / ca),
                "connect_timeout_seconds": 1,
                "timeout_seconds": 1,
                "resolvers": ("127.0.0.1",),
            },
        )

    yield start
    for names in stack:
        names.__exit__(None, None, None)


def test_it_decides(behind: Callable[..., Gateway], service: AuthService) -> None:
    gateway = behind()
    answer = gateway.request("POST", "/v1/completions?secret=1", b'{"prompt": "hidden"}', KEY)
    assert answer.status == 200
    seen = service.seen[-1]
    assert service.names[-1] == NAME
    assert seen["path"] == "/llm/check"
    assert seen["host"] == f"{NAME}:{service.port}"
    assert seen["authorization"] == KEY["Authorization"]
    assert seen["x-original-method"] == "POST"
    assert seen["x-original-uri"] == "/v1/completions"
    assert seen["x-request-id"] == answer.header("X-Request-Id")
    assert "content-length" not in seen
    assert not [value for value in seen.values() if "hidden" in value]
    request_id = str(answer.header("X-Request-Id"))
    wait_until(lambda: request_id in gateway.access_log.read_text(), "the log")
    (line,) = [x for x in gateway.log_lines() if x["request_id"] == request_id]
    assert line["key_id"] == 'ours-7"\\'  # up to what is not printable
    for status, code in [(401, "invalid_api_key"), (403, "permission_denied")]:
        service.status = status
        refused = gateway.request("GET", "/v1/models", headers=KEY)
        assert refused.status == status
        assert refused.error_code() == code


@pytest.mark.parametrize("status", [302, 404, 429, 500, 503])
def test_what_is_no_decision_is_no_access(
    behind: Callable[..., Gateway], service: AuthService, status: int
) -> None:
    gateway = behind()
    service.status = status
    before = len(gateway.engine.seen)
    answer = gateway.request("GET", "/v1/models", headers=KEY)
    assert answer.status == 503
    assert answer.error_code() == "authentication_unavailable"
    assert len(gateway.engine.seen) == before


def test_it_hangs(behind: Callable[..., Gateway], service: AuthService) -> None:
    gateway = behind()
    service.delay_seconds = 1.5
    assert gateway.request("GET", "/v1/models", headers=KEY).status == 503


@pytest.mark.parametrize(
    "wrong",
    [{"ca": "tls.crt"}, {"name": "other.example.test"}, {"address": None}],
    ids=["of another authority", "for another name", "nobody knows the name"],
)
def test_who_is_not_the_service_is_not_asked(
    behind: Callable[..., Gateway], service: AuthService, wrong: dict[str, Any]
) -> None:
    gateway = behind(**wrong)
    before = len(service.seen), len(gateway.engine.seen)
    answer = gateway.request("GET", "/v1/models", headers=KEY)
    assert answer.status == 503
    assert answer.error_code() == "authentication_unavailable"
    assert (len(service.seen), len(gateway.engine.seen)) == before
    assert gateway.request("GET", "/health").status == 200
