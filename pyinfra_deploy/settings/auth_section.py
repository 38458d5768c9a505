"""The settings of an organisation's own authentication service."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from pyinfra_deploy.settings.kinds import AbsolutePath, OneLine, Url, refuse
from pyinfra_deploy.settings.section import LENIENT, Section, setting

# Long enough for a service in the same network, short enough to be a decision and no queue.
AuthSeconds = Annotated[int, Field(ge=1, le=30)]

# What can stand in an Nginx configuration and in a URL alike; no query, whose place is a header.
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_PATH = re.compile(r"/[A-Za-z0-9._~/-]*")


class Auth(Section):
    """Who decides about API keys. Without url it is our service with the inventory's keys.json."""

    url: Url | None = setting(
        None,
        "An organisation's own service that decides instead of ours: it gets GET with the client's "
        "Authorization, X-Request-Id, X-Original-Method and X-Original-URI, and answers 2xx for "
        "yes (with X-Key-Id for the access log, if it has one), 401 or 403 for no. Anything else, "
        "and no answer, is no access (503). Only https://, and its certificate is verified.",
        "https://auth.example.com/llm/check",
    )
    ca_file: AbsolutePath = setting(
        "/etc/ssl/certs/ca-certificates.crt",
        "File on the host with the authorities that its certificate may come from.",
        "/etc/ssl/certs/corporate-ca.pem",
    )
    connect_timeout_seconds: AuthSeconds = setting(
        2, "How long a connection to it may take to come about.", 2
    )
    timeout_seconds: AuthSeconds = setting(3, "How long it may then be silent.", 3)
    resolvers: Annotated[tuple[OneLine, ...], LENIENT] = setting(
        (),
        "Name servers that Nginx asks for its address, by their addresses. Empty: those in the "
        "host's /etc/resolv.conf.",
        ["10.0.0.53"],
    )

    @field_validator("url")
    @classmethod
    def _verified(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.startswith("https://"):
            raise refuse("must begin with https://: keys go over it.")
        parts = urlsplit(value)
        if (
            parts.query
            or parts.fragment
            or parts.username
            or not _PATH.fullmatch(parts.path or "/")
        ):
            raise refuse(
                "must be https://HOST[:PORT]/PATH, the path of letters, digits and . _ ~ / -; the "
                "service gets what is asked for in headers."
            )
        try:
            fits = parts.port != 0 and _HOST.fullmatch(parts.hostname or "")
        except ValueError:
            fits = None
        if not fits or _is_address(parts.hostname or ""):
            # Nginx compares certificates with host names alone (ngx_ssl_check_host).
            raise refuse("must name a host, no address, and if any a port.")
        return value

    @field_validator("resolvers")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            if not _is_address(address):
                raise refuse(f"{address!r} is no IP address.")
        return value


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
