"""Where a gateway's certificate comes from, at odds with the rest of its settings."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.settings.gateway_section import Gateway, Tls

# key path, message, fix
Contradiction = tuple[tuple[str, ...], str, str]

# RFC 8555, 8.3: the authority asks at port 80 and no other.
ACME_PORT = 80


def certificate_contradictions(gateway: Gateway) -> Iterator[Contradiction]:
    yield from _files(gateway.tls)
    if gateway.tls.source == "acme":
        yield from _acme(gateway)


def _files(tls: Tls) -> Iterator[Contradiction]:
    files = {"certificate": tls.certificate, "key": tls.key}
    for name, value in files.items():
        if tls.source == "files" and value is None:
            yield (
                ("gateway", "tls", name),
                f"gateway.tls.source is files, and gateway.tls.{name} is missing.",
                f"add {name}: /path/on/the/host.pem, or use source: own_ca.",
            )
        if tls.source != "files" and value is not None:
            yield (
                ("gateway", "tls", name),
                f"gateway.tls.{name} is set, but gateway.tls.source is {tls.source} and would "
                "ignore it.",
                "write source: files, or remove it.",
            )
    if tls.certificate is not None and tls.certificate == tls.key:
        yield (
            ("gateway", "tls", "key"),
            "gateway.tls.key and gateway.tls.certificate are the same file.",
            "keep the key in a file of its own, readable by root only.",
        )


def _acme(gateway: Gateway) -> Iterator[Contradiction]:
    if not gateway.tls.acme_terms_accepted:
        yield (
            ("gateway", "tls", "acme_terms_accepted"),
            "gateway.tls.source is acme, and the authority's terms of service are not accepted.",
            "read them (the directory names them in meta.termsOfService), then write "
            "acme_terms_accepted: true.",
        )
    if gateway.http_port != ACME_PORT:
        yield (
            ("gateway", "http_port"),
            f"is {gateway.http_port}, and with gateway.tls.source: acme the authority asks at "
            f"port {ACME_PORT} (RFC 8555, 8.3).",
            f"write http_port: {ACME_PORT}, or use another source.",
        )
    if _is_address(gateway.server_name) or "." not in gateway.server_name:
        yield (
            ("gateway", "server_name"),
            f"{gateway.server_name} is no public host name, and an ACME authority certifies only "
            "such.",
            "use the name that clients use, or source: own_ca.",
        )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
