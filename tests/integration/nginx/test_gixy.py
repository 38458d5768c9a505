"""Gixy reads the rendered configurations of all modes, as somebody does who looks for holes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pyinfra_deploy.planning.engine_door import DoorHost, render_door
from pyinfra_deploy.planning.nginx import NginxHost, render
from tests.fakes.gateway_settings import gateway_settings

# What it says that is meant so, and why.
MEANT = {
    "proxy_buffering_off": "events of a stream have to arrive when they are made",
    "proxy_set_header_redefinition": "a subrequest has a list of its own on purpose: it carries "
    "the key or nothing, never what the client's request carries",
    "ssl_ecdh_curve": "the groups of Mozilla's guideline; `auto` is what OpenSSL likes that day",
    "try_files_is_evil_too": "/ready asks for a file that does not exist, once a second; a cached "
    "answer about files would hide the drain flag",
}
HOST = NginxHost(
    nginx_version="1.26.3",
    openssl_version="3.5.4",
    engine_socket="/run/llm-engine-main/http.sock",
    certificate="/etc/llm/tls/server.crt",
    certificate_key="/etc/llm/tls/server.key",
    drain_flag="/run/llm/drain/main",
    max_body_mb=16,
    name_servers=("10.0.0.53",),
)
DOOR = DoorHost(
    nginx_version="1.26.3",
    engine_socket="/run/llm-engine-main/http.sock",
    drain_flag="/run/llm/drain/main",
    door_name="gpu01.engine.prod.fleet.internal",
    port=8443,
    gateways=["gw01.gateway.prod.fleet.internal"],
    max_body_mb=16,
    read_timeout_seconds=600,
)


def vhost(**settings: Any) -> str:
    (text,) = render(gateway_settings(**settings), HOST).files.values()
    return text


def configurations() -> dict[str, str]:
    acme = replace(HOST, acme_webroot="/var/lib/llm-acme", nginx_version="1.22.1")
    (with_acme,) = render(gateway_settings(mode="full", tokenize=True), acme).files.values()
    (door,) = render_door(DOOR).files.values()
    return {
        "full": vhost(mode="full"),
        "full with ACME": with_acme,
        "full without CORS": vhost(mode="full", cors_origins=[]),
        "direct": vhost(),
        "direct with an auth service": vhost(auth={"url": "https://auth.example.com/check"}),
        "door": door,
    }


@cache
def findings(text: str) -> list[dict[str, Any]]:
    """One run a text: each takes a second of a processor."""
    with tempfile.TemporaryDirectory() as directory:
        return found_in(Path(directory), text)


def found_in(directory: Path, text: str) -> list[dict[str, Any]]:
    # The main file is the distribution's; this is as little of one as it takes.
    main = directory / "nginx.conf"
    main.write_text(f"worker_processes auto;\nevents {{}}\nhttp {{\n{text}}}\n")
    done = subprocess.run(
        [sys.executable, "-m", "gixy.cli", "-f", "json", str(main)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", list(configurations()))
def test_nothing_is_found_but_what_is_meant(name: str) -> None:
    found = findings(configurations()[name])
    assert [one for one in found if one["plugin"] not in MEANT] == []


def test_each_exception_is_needed() -> None:
    found = {one["plugin"] for text in configurations().values() for one in findings(text)}
    assert found == set(MEANT)


def test_a_hole_is_found() -> None:
    text = vhost().replace(
        "return 308 https://llm.example.com$request_uri;", "return 308 https://$http_host$uri;"
    )
    plugins = {one["plugin"] for one in findings(text)}
    assert {"http_splitting", "host_spoofing"} & plugins
