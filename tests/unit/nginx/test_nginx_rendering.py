"""What is rendered for versions of Nginx and OpenSSL that are not installed here."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pyinfra_deploy.planning.nginx import CONFIGURATION, DOOR_CONFIGURATION, NginxHost, render
from pyinfra_deploy.planning.nginx_build import (
    STOCK_SITE,
    NginxInputError,
    curves,
    parse_nginx_build,
)
from tests.fakes.gateway_settings import gateway_settings

HOST = NginxHost(
    nginx_version="1.26.3",
    engine_socket="/run/llm-engine-main/http.sock",
    certificate="/etc/llm/tls/server.crt",
    certificate_key="/etc/llm/tls/server.key",
    drain_flag="/run/llm/drain/main",
    max_body_mb=16,
)

WITH_NAMES = replace(HOST, name_servers=("127.0.0.53",))


def text(host: NginxHost = HOST, **settings: Any) -> str:
    (rendered,) = render(gateway_settings(**settings), host).files.values()
    return rendered


def test_what_is_written_and_removed() -> None:
    result = render(gateway_settings(), HOST)
    assert list(result.files) == [CONFIGURATION]
    assert result.remove == (DOOR_CONFIGURATION, STOCK_SITE)


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
    assert f'    "~^429 " {seconds};' in rendered


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
        ({"max_body_mb": "16m; x"}, "max_body_mb"),
        ({"certificate": "relative.crt"}, "certificate"),
        ({"drain_flag": "/run/x) { return 200; } if (-f /y"}, "drain_flag"),
    ],
)
def test_a_host_that_cannot_be_served(change: dict[str, Any], said: str) -> None:
    with pytest.raises(NginxInputError, match=said):
        text(replace(HOST, **change))


def test_full_mode_asks_the_service_and_nobody_else() -> None:
    rendered = text(mode="full")
    assert "server unix:/run/llm-gateway/http.sock" in rendered
    assert "auth_request" not in rendered
    assert HOST.engine_socket not in rendered
    assert "location = /v1/responses" in rendered
    assert "proxy_set_header Authorization $http_authorization;" in rendered
    for path in ("/ready", "/metrics", "/auth"):
        assert f"location = {path} " not in rendered


def test_direct_mode_gives_the_engine_no_key() -> None:
    rendered = text()
    assert rendered.count("Authorization $http_authorization") == 1  # to our own service
    assert "location = /v1/responses" not in rendered


@pytest.mark.parametrize("mode", ["full", "direct"])
@pytest.mark.parametrize("tokenize", [True, False])
def test_tokenize_by_choice(mode: str, tokenize: bool) -> None:
    assert ("location = /tokenize " in text(mode=mode, tokenize=tokenize)) is tokenize


def test_the_service_ends_a_request_before_nginx_does() -> None:
    assert "proxy_read_timeout 600s;" in text()
    assert "proxy_read_timeout 690s;" in text(mode="full")


def test_keys_of_an_organisation_are_counted_whatever_they_look_like() -> None:
    auth = {"url": "https://auth.example.com/check", "resolvers": ("10.0.0.53", "fd00::53")}
    for mode in ("full", "direct"):
        rendered = text(mode=mode, auth=auth)
        assert "Bearer +(?<llm_token>[!-~]{8,4096})" in rendered
        assert ("resolver 10.0.0.53 [fd00::53] valid=60s" in rendered) is (mode == "direct")
        assert "upstream llm_auth" not in rendered


def test_the_hosts_own_name_servers() -> None:
    auth = {"url": "https://auth.example.com:8443/a/b"}
    rendered = text(replace(HOST, name_servers=("127.0.0.53",), ipv6=False), auth=auth)
    assert "resolver 127.0.0.53 valid=60s ipv6=off;" in rendered
    assert "proxy_pass https://$llm_auth_host:8443/a/b;" in rendered
    assert "proxy_ssl_verify on;" in rendered
    assert "proxy_ssl_name auth.example.com;" in rendered


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        ({"url": "http://auth.example.com/"}, "not https"),
        ({"url": "https://auth.example.com/a;b"}, "not https"),
        ({"url": "https://192.0.2.1/"}, "names alone"),
        ({"url": "https://auth.example.com/"}, "nobody can tell"),
        ({"url": "https://auth.example.com/", "resolvers": ("dns; x",)}, "no IP address"),
        ({"url": "https://auth.example.com/", "ca_file": "a b"}, "ca_file"),
    ],
)
def test_an_auth_service_that_cannot_be_asked(auth: dict[str, Any], said: str) -> None:
    host = HOST if "resolvers" in auth or said == "nobody can tell" else WITH_NAMES
    with pytest.raises(NginxInputError, match=said):
        text(host, auth=auth)


def test_acme_answers_are_served_over_http_alone() -> None:
    rendered = text(replace(HOST, acme_webroot="/var/lib/llm-acme"))
    assert rendered.count("/.well-known/acme-challenge/") == 1
    challenge = rendered.index("/.well-known/acme-challenge/")
    assert rendered.index("listen 80 ") < challenge < rendered.index("listen 443 ")
    assert "acme" not in text()


@pytest.mark.parametrize("burst", [0, 5])
def test_a_burst_of_nothing_is_no_burst(burst: int) -> None:
    rendered = text(rate_limit={"ip_burst": burst})
    assert ("limit_req zone=llm_ip;" in rendered) is (burst == 0)


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
