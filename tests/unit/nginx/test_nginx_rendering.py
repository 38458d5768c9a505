"""What is rendered for versions of Nginx and OpenSSL that are not installed here."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pyinfra_deploy.planning.nginx import (
    CONFIGURATION,
    STOCK_SITE,
    NginxHost,
    NginxInputError,
    curves,
    parse_nginx_build,
    render,
)
from tests.fakes.gateway_settings import gateway_settings

HOST = NginxHost(
    nginx_version="1.26.3",
    engine_socket="/run/llm-engine-main/http.sock",
    certificate="/etc/llm/tls/server.crt",
    certificate_key="/etc/llm/tls/server.key",
    drain_flag="/run/llm/drain/main",
)


def text(host: NginxHost = HOST, **settings: Any) -> str:
    (rendered,) = render(gateway_settings(**settings), host).files.values()
    return rendered


def test_what_is_written_and_removed() -> None:
    result = render(gateway_settings(), HOST)
    assert list(result.files) == [CONFIGURATION]
    assert result.remove == (STOCK_SITE,)


@pytest.mark.parametrize(
    ("version", "parameter"),
    [("1.22.1", True), ("1.25.0", True), ("1.25.1", False), ("1.26.3", False), ("1.29.7", False)],
)
def test_http2_as_each_version_wants_it(version: str, parameter: bool) -> None:
    rendered = text(replace(HOST, nginx_version=version))
    assert ("listen 443 ssl http2 default_server;" in rendered) is parameter
    assert ("listen 443 ssl default_server;" in rendered) is not parameter
    assert bool(re.search(r"^ +http2 on;$", rendered, re.MULTILINE)) is not parameter


@pytest.mark.parametrize(
    ("openssl", "hybrid"),
    [(None, False), ("3.0.19", False), ("3.4.9", False), ("3.5.0", True), ("4.0.0", True)],
)
def test_only_curves_that_openssl_knows(openssl: str | None, hybrid: bool) -> None:
    value = curves(openssl)
    assert value.startswith("X25519MLKEM768:") is hybrid
    assert f"ssl_ecdh_curve {value};" in text(replace(HOST, openssl_version=openssl))


def test_without_ipv6_there_is_no_ipv6_listener() -> None:
    assert text().count("[::]") == 2
    assert "[::]" not in text(replace(HOST, ipv6=False))


def test_without_origins_there_is_no_cors() -> None:
    rendered = text(cors_origins=[])
    assert "add_header Access-Control" not in rendered
    assert "$llm_cors" not in rendered


def test_the_redirect_names_a_port_only_when_it_must() -> None:
    assert "return 308 https://llm.example.com$request_uri;" in text()
    assert "return 308 https://llm.example.com:8443$request_uri;" in text(https_port=8443)


@pytest.mark.parametrize(("ip", "key", "seconds"), [(600, 600, 1), (60, 600, 1), (20, 7, 9)])
def test_retry_after_is_when_a_request_is_free_again(ip: int, key: int, seconds: int) -> None:
    rendered = text(rate_limit={"ip_per_minute": ip, "key_per_minute": key})
    assert f"    429 {seconds};" in rendered


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"server_name": "a; return 200"}, "server_name"),
        ({"server_name": "a\n"}, "server_name"),
        ({"server_name": "-a"}, "server_name"),
        ({"server_name": "a" * 254}, "server_name"),
        ({"cors_origins": ["*"]}, "cors_origins"),
        ({"cors_origins": ["https://a.example/"]}, "without a path"),
        ({"cors_origins": ['https://a" "b']}, "cors_origins"),
        ({"https_port": 0}, "https_port"),
        ({"max_body_mb": "16m; x"}, "max_body_mb"),
        ({"rate_limit": {"key_per_minute": 0}}, "key_per_minute"),
    ],
)
def test_settings_that_would_break_the_file(change: dict[str, Any], said: str) -> None:
    with pytest.raises(NginxInputError, match=said):
        text(**change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nginx_version": "1.18.0"}, "older than 1.22"),
        ({"nginx_version": ""}, "not a version"),
        ({"engine_socket": "/run/a b"}, "engine_socket"),
        ({"certificate": "relative.crt"}, "certificate"),
        ({"drain_flag": "/run/x) { return 200; } if (-f /y"}, "drain_flag"),
    ],
)
def test_a_host_that_cannot_be_served(change: dict[str, Any], said: str) -> None:
    with pytest.raises(NginxInputError, match=said):
        text(replace(HOST, **change))


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            "nginx version: nginx/1.22.1\n"
            "built with OpenSSL 3.0.22 25 Aug 2026 (running with OpenSSL 3.0.19 27 Jan 2026)\n",
            ("1.22.1", "3.0.19"),
        ),
        (
            "nginx version: nginx/1.26.3\nbuilt with OpenSSL 3.5.4 30 Sep 2025\n",
            ("1.26.3", "3.5.4"),
        ),
        ("nginx version: nginx/1.24.0 (Ubuntu)\nTLS SNI support enabled\n", ("1.24.0", None)),
        ("nginx version: openresty/1.27.1.1\nbuilt with LibreSSL 3.9\n", ("1.27.1.1", None)),
    ],
)
def test_the_build_is_read_from_nginx_v(output: str, expected: tuple[str, str | None]) -> None:
    assert parse_nginx_build(output) == expected


def test_a_build_that_cannot_be_read() -> None:
    with pytest.raises(NginxInputError, match="command not found"):
        parse_nginx_build("bash: nginx: command not found\n")
