"""Requests through a real Nginx, the real auth service and a stub engine."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from typing import Any

import pytest

from tests.integration.nginx.running import CHUNKS, Gateway, has_ipv6, wait_until

ORIGIN = "https://app.example.com"
JSON = {"Content-Type": "application/json"}
OTHER_KEY = "sk-" + "a" * 51


def test_a_request_with_a_key_is_answered(gateway: Gateway, authorized: dict[str, str]) -> None:
    answer = gateway.request("POST", "/v1/chat/completions?a=b", b"{}", authorized | JSON)
    assert answer.status == 200
    assert json.loads(answer.body) == {"path": "/v1/chat/completions"}
    assert gateway.engine.seen[-1]["target"] == "/v1/chat/completions?a=b"
    assert answer.header("Server") == "nginx"
    assert answer.header("Strict-Transport-Security") == "max-age=63072000"


def test_the_engine_gets_neither_the_key_nor_what_would_steer_it(
    gateway: Gateway, authorized: dict[str, str]
) -> None:
    extra = {
        "Cookie": "session=1",
        "Origin": ORIGIN,
        "X-Request-Id": "chosen by the client",
        "X-data-parallel-rank": "3",
        "Accept-Encoding": "gzip",
        "traceparent": "00-1-2-01",
    }
    answer = gateway.request("POST", "/v1/completions", b"{}", authorized | JSON | extra)
    seen = dict(gateway.engine.seen[-1]["headers"])
    assert set(seen) == {
        "host", "content-type", "content-length", "x-request-id", "traceparent",
    }  # fmt: skip
    assert len(seen["x-request-id"]) == 32
    assert answer.header("X-Request-Id") == seen["x-request-id"]


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {OTHER_KEY}",
        "Basic c2s6",
        OTHER_KEY,
        "Bearer sk-\xe9" + "a" * 50,
        "Bearer " + "a" * 4000,
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions"])
def test_without_a_good_key_401(gateway: Gateway, path: str, authorization: str | None) -> None:
    before = len(gateway.engine.seen)
    headers = {} if authorization is None else {"Authorization": authorization}
    method = "GET" if path == "/v1/models" else "POST"
    answer = gateway.request(method, path, b"{}" if method == "POST" else None, headers)
    assert answer.status == 401
    assert answer.error_code() == "invalid_api_key"
    assert answer.header("WWW-Authenticate") == "Bearer"
    assert len(gateway.engine.seen) == before


def test_two_authorization_headers_do_not_pass(
    gateway: Gateway, authorized: dict[str, str]
) -> None:
    before = len(gateway.engine.seen)
    good = authorized["Authorization"]
    for first, second in [(good, "Bearer x"), ("Bearer x", good), (good, good)]:
        request = (
            "GET /v1/models HTTP/1.1\r\nHost: llm.example.com\r\nConnection: close\r\n"
            f"Authorization: {first}\r\nAuthorization: {second}\r\n\r\n"
        )
        assert gateway.raw(request.encode()).status in (400, 401)
    assert len(gateway.engine.seen) == before


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/metrics",
        "/version",
        "/docs",
        "/v1",
        "/v1/",
        "/v1/responses",
        "/v1/models/",
        "/v1/models.",
        "/v1/models.html",
        "/v1/models/x",
        "/V1/models",
        "/v1/Models",
        "//v1/models",
        "/v1//models",
        "/./v1/models",
        "/x/../v1/models",
        "/v1/models/.",
        "/v1/%6dodels",
        "/v1%2fmodels",
        "/v1/%2e/models",
        "/v1/models%00",
        "/v1/models%20",
        "/v1/models;x=1",
        "/v1\\models",
        "/health/",
        "/health/../metrics",
        "/health%2f..%2fmetrics",
        "/_llm/auth",
        "/auth",
        "/@not_found",
        "https://llm.example.com/v1/models",
        "http://engine/metrics",
        "https://llm.example.com/metrics",
    ],
)
def test_what_is_not_listed_does_not_exist(
    gateway: Gateway, authorized: dict[str, str], target: str
) -> None:
    before = len(gateway.engine.seen)
    request = (
        f"GET {target} HTTP/1.1\r\nHost: llm.example.com\r\nConnection: close\r\n"
        f"Authorization: {authorized['Authorization']}\r\n\r\n"
    )
    answer = gateway.raw(request.encode())
    if target == "/v1/models%00":  # Nginx itself refuses a NUL byte
        assert answer.status == 400
    else:
        assert answer.status == 404
        assert answer.error_code() == "unknown_url"
    assert len(gateway.engine.seen) == before


@pytest.mark.parametrize(
    "request_text",
    [
        "GARBAGE\r\n\r\n",
        "GET /v1/models HTTP/1.1\r\n\r\n",
        "GET /v1/models HTTP/9.9\r\nHost: x\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        "CONNECT llm.example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /v1/models HTTP/1.1\r\nHost: x\r\nX: " + "a" * 40000 + "\r\n\r\n",
        "GET /" + "a" * 40000 + " HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_malformed_requests_never_reach_the_engine(gateway: Gateway, request_text: str) -> None:
    before = len(gateway.engine.seen)
    try:
        answer = gateway.raw(request_text.encode())
    except (ConnectionError, ssl.SSLEOFError):
        # Nginx closes with input unread, and a reset may overtake its answer.
        assert len(request_text) > 8192
    else:
        assert answer.status in (400, 405, 414, 505)
        assert answer.error_code() in ("bad_request", "method_not_supported")
    assert len(gateway.engine.seen) == before


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", "POST, OPTIONS"),
        ("PUT", "/v1/completions", "POST, OPTIONS"),
        ("DELETE", "/v1/models", "GET, OPTIONS"),
        ("POST", "/v1/models", "GET, OPTIONS"),
        ("POST", "/health", "GET, OPTIONS"),
        ("TRACE", "/v1/models", "GET, OPTIONS"),
    ],
)
def test_the_wrong_method(gateway: Gateway, method: str, path: str, allow: str) -> None:
    answer = gateway.request(method, path)
    assert answer.status == 405
    assert answer.error_code() == "method_not_supported"
    assert answer.header("Allow") == allow


def test_health_needs_no_key(gateway: Gateway) -> None:
    answer = gateway.request("GET", "/health")
    assert answer.status == 200
    assert gateway.engine.seen[-1]["target"] == "/health"


def test_answers_of_the_engine_pass_unchanged(gateway: Gateway, authorized: dict[str, str]) -> None:
    answer = gateway.request("POST", "/v1/completions", b'"fail"', authorized | JSON)
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["message"] == "of the engine"


def test_a_stream_arrives_spread_over_time(gateway: Gateway, authorized: dict[str, str]) -> None:
    events = list(gateway.stream(authorized | JSON))
    assert [line for _, line in events] == [
        *(f"data: {number}".encode() for number in range(CHUNKS)),
        b"data: [DONE]",
    ]
    # Each event was here before the next but one was sent: none waited for later ones. How they are
    # apart in time is told by test_stream_pieces, which a busy machine does not disturb.
    for (arrived, _), sent_later in zip(events, gateway.engine.sent[2:], strict=False):
        assert arrived < sent_later


def test_a_body_that_is_too_large(gateway: Gateway, authorized: dict[str, str]) -> None:
    before = len(gateway.engine.seen)
    request = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n"
        f"Origin: {ORIGIN}\r\nAuthorization: {authorized['Authorization']}\r\n\r\n"
    )
    answer = gateway.raw(request.encode())
    assert answer.status == 413
    assert answer.error_code() == "request_too_large"
    assert answer.header("Access-Control-Allow-Origin") == ORIGIN
    accepted = gateway.request("POST", "/v1/completions", b" " * 1048576, authorized | JSON)
    assert accepted.status == 200
    assert len(gateway.engine.seen) == before + 1
    assert not list(gateway.directory.glob("client_body/*")), "a prompt was written to a file"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/health"])
def test_preflight(gateway: Gateway, path: str) -> None:
    asked = "authorization, content-type, x-stainless-os"
    headers = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": asked,
    }
    answer = gateway.request("OPTIONS", path, headers=headers)
    assert answer.status == 204
    assert answer.body == b""
    assert answer.header("Access-Control-Allow-Origin") == ORIGIN
    assert answer.header("Access-Control-Allow-Methods") == "GET, POST, OPTIONS"
    assert answer.header("Access-Control-Allow-Headers") == asked
    assert answer.header("Access-Control-Max-Age") == "600"
    assert answer.header("Vary") == "Origin"
    del headers["Access-Control-Request-Headers"]
    answer = gateway.request("OPTIONS", path, headers=headers)
    assert answer.header("Access-Control-Allow-Headers") == "Authorization, Content-Type"


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example.com",
        "https://app.example.com.evil.org",
        "https://appXexample.com",
        "http://app.example.com",
        "https://app.example.com:444",
        "null",
        "",
    ],
)
def test_other_origins_get_no_cors_headers(
    gateway: Gateway, authorized: dict[str, str], origin: str
) -> None:
    for method in ("OPTIONS", "GET"):
        headers = authorized | {"Origin": origin, "Access-Control-Request-Method": "GET"}
        answer = gateway.request(method, "/v1/models", headers=headers)
        assert answer.status == (204 if method == "OPTIONS" else 200)
        assert not [name for name, _ in answer.headers if name.lower().startswith("access-")]
        assert answer.header("Vary") == "Origin"


def test_cors_headers_on_answers_and_on_errors(
    gateway: Gateway, authorized: dict[str, str]
) -> None:
    for headers, path, status in [
        (authorized, "/v1/models", 200),
        ({}, "/v1/models", 401),
        ({}, "/nowhere", 404),
        ({}, "/v1/completions", 405),
    ]:
        answer = gateway.request("GET", path, headers=headers | {"Origin": ORIGIN})
        assert answer.status == status
        assert answer.header("Access-Control-Allow-Origin") == ORIGIN
        assert answer.header("Access-Control-Allow-Credentials") == "true"
        assert answer.header("Access-Control-Expose-Headers") == "X-Request-Id, Retry-After"
        assert answer.header("Access-Control-Allow-Methods") is None
        assert answer.header("X-Request-Id")


@pytest.mark.parametrize("host", ["llm.example.com", "evil.example.org"])
def test_http_is_redirected_to_the_name_of_the_settings(gateway: Gateway, host: str) -> None:
    request = f"POST /v1/models?a=b HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n"
    answer = gateway.raw(request.encode(), plain=True)
    assert answer.status == 308
    expected = f"https://llm.example.com:{gateway.https_port}/v1/models?a=b"
    assert answer.header("Location") == expected


def test_plain_http_to_the_https_port_is_refused(gateway: Gateway) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", gateway.https_port, timeout=10)
    connection.request("GET", "/v1/models")
    assert connection.getresponse().status == 400
    connection.close()


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_ipv6(gateway: Gateway) -> None:
    assert gateway.request("GET", "/health", address="::1").status == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_http2(gateway: Gateway, authorized: dict[str, str]) -> None:
    url = f"https://127.0.0.1:{gateway.https_port}"
    for path, expected in [("/v1/models", "2 200"), ("//v1/models", "2 404")]:
        result = subprocess.run(
            [
                *("curl", "--silent", "--insecure", "--http2", "--path-as-is", "--config", "-"),
                *("--output", "/dev/null", "--write-out", "%{http_version} %{http_code}"),
                url + path,
            ],
            input=f'header = "Authorization: {authorized["Authorization"]}"',
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout == expected


def test_the_access_log_names_the_key_and_holds_no_secret(
    gateway: Gateway, authorized: dict[str, str], key: tuple[str, dict[str, Any]]
) -> None:
    plaintext, document = key
    answer = gateway.request(
        "POST", "/v1/completions?api_key=hidden", b'{"prompt": "hidden"}', authorized | JSON
    )
    gateway.request("GET", '/x"\\', headers={"User-Agent": 'a"\\\x01\xff'})
    wait_until(lambda: any(x["path"] == '/x"\\' for x in gateway.log_lines()), "the log")
    gateway.raw(b"GET /\xff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    gateway.raw(b"GARBAGE\r\n\r\n")
    request_id = answer.header("X-Request-Id")
    (line,) = [x for x in gateway.log_lines() if x["request_id"] == request_id]
    assert line["key_id"] == document["keys"][0]["id"]
    assert line["status"] == 200
    assert line["method"] == "POST"
    assert line["path"] == "/v1/completions"
    assert line["body_bytes"] >= len(answer.body)  # and the chunks' framing
    assert float(line["upstream_seconds"]) >= 0
    logs = list(gateway.directory.glob("*.log"))
    assert len(logs) == 4  # access, error of the vhost and of Nginx, auth service
    for log in logs:
        text = log.read_bytes()
        assert plaintext.encode() not in text
        assert plaintext[11:].encode() not in text
    assert "hidden" not in gateway.access_log.read_text()
