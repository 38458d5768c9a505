"""Settings of the vhost: who decides about keys, where the certificate comes from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from pyinfra_deploy.settings.auth_section import Auth
from pyinfra_deploy.settings.certificate_contradictions import certificate_contradictions
from pyinfra_deploy.settings.gateway_section import Tls


@pytest.mark.parametrize(
    "url",
    [
        "https://auth.example.com",
        "https://auth.example.com/llm/check",
        "https://auth.example.com:8443/a-b/c_d.e",
    ],
)
def test_an_auth_service(url: str) -> None:
    assert Auth.model_validate({"url": url}).url == url


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"url": "http://auth.example.com/check"}, "must begin with https"),
        ({"url": "https://auth.example.com/check?key=1"}, "in headers"),
        ({"url": "https://auth.example.com/check#x"}, "in headers"),
        ({"url": "https://auth.example.com/a;b"}, "in headers"),
        ({"url": "https://192.0.2.1/check"}, "no address"),
        ({"url": "https://auth.example.com:99999/check"}, "a port"),
        ({"url": "https://auth.example.com:0/check"}, "a port"),
        ({"url": "https://[::1]/check"}, "no address"),
        ({"url": "https://a_b.example.com/"}, "must name a host"),
        ({"resolvers": ["dns.example.com"]}, "no IP address"),
        ({"ca_file": "relative.pem"}, "absolute path"),
        ({"timeout_seconds": 31}, "less than or equal"),
        ({"timeout_seconds": 0}, "greater than or equal"),
    ],
)
def test_an_auth_service_that_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Auth.model_validate(change)


def told(server_name: str = "llm.example.com", http_port: int = 80, **tls: Any) -> list[str]:
    gateway: Any = SimpleNamespace(
        server_name=server_name, http_port=http_port, tls=Tls.model_validate(tls)
    )
    return [".".join(keys) for keys, _, _ in certificate_contradictions(gateway)]


FILES = {"source": "files", "certificate": "/a.pem", "key": "/a.key"}
ACME = {"source": "acme", "acme_terms_accepted": True}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        (FILES, []),
        (ACME, []),
        ({**FILES, "key": None}, ["gateway.tls.key"]),
        ({**FILES, "key": "/a.pem"}, ["gateway.tls.key"]),
        ({"certificate": "/a.pem"}, ["gateway.tls.certificate"]),
        ({**ACME, "certificate": "/a.pem"}, ["gateway.tls.certificate"]),
        ({"source": "acme"}, ["gateway.tls.acme_terms_accepted"]),
        ({**ACME, "http_port": 8080}, ["gateway.http_port"]),
        ({**ACME, "server_name": "localhost"}, ["gateway.server_name"]),
        ({**ACME, "server_name": "192.0.2.1"}, ["gateway.server_name"]),
    ],
)
def test_where_the_certificate_comes_from(settings: dict[str, Any], expected: list[str]) -> None:
    assert told(**settings) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"acme_directory": "http://acme.example.com/directory"},
        {"acme_email": "not an address"},
        {"source": "letsencrypt"},
    ],
)
def test_an_authority_that_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Tls.model_validate(wrong)
