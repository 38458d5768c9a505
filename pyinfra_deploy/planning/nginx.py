"""The vhost of a gateway host: settings and a few facts in, the text of files out.

gateway.mode full: Nginx, the gateway service, engines. direct: Nginx asks for the key and passes
requests to the host's own engine. Nothing is read but the templates that ship with this code.
"""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from pyinfra_deploy.planning.nginx_build import (
    HOST_NAME,
    Log,
    NginxFiles,
    NginxInputError,
    build_of,
    check_numbers,
    check_paths,
    fill_in,
)
from pyinfra_deploy.planning.nginx_build import (
    STOCK_SITE as STOCK_SITE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONFIGURATION = "/etc/nginx/conf.d/llm-gateway.conf"
# Of a host that was an engine's alone (engine_door.py).
DOOR_CONFIGURATION = "/etc/nginx/conf.d/llm-engine-door.conf"
# While it exists the gateway host takes no new requests; no engine can have this name.
GATEWAY_DRAIN_FLAG = "/run/llm/drain/_gateway"
SERVICE_SOCKET = "/run/llm-gateway/http.sock"

# In mode full the service's own time-outs are to end a request, with its words: Nginx's is longer
# by what a request may wait there for a connection, for a count and in the queue.
SERVICE_WAITS_SECONDS = 90

# What a page in a browser may read of the service's answers.
SERVICE_HEADERS = ("X-Prompt-Token-Count", "X-KV-Cache-Usage-Percent")

_ORIGIN = re.compile(
    r"[a-z][a-z0-9+.-]*://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?"
)
_URL_PATH = re.compile(r"/[A-Za-z0-9._~/-]*")


class RateLimit(Protocol):
    """Requests a minute, and how many may come at once, per client address and per key."""

    @property
    def ip_per_minute(self) -> int: ...
    @property
    def ip_burst(self) -> int: ...
    @property
    def key_per_minute(self) -> int: ...
    @property
    def key_burst(self) -> int: ...


class AuthService(Protocol):
    """What is read of `gateway.auth`; it counts in mode direct alone."""

    @property
    def url(self) -> str | None: ...
    @property
    def ca_file(self) -> str: ...
    @property
    def connect_timeout_seconds(self) -> int: ...
    @property
    def timeout_seconds(self) -> int: ...
    @property
    def resolvers(self) -> Sequence[str]: ...


class GatewaySettings(Protocol):
    """What is read of the settings' `gateway` mapping."""

    @property
    def server_name(self) -> str: ...
    @property
    def https_port(self) -> int: ...
    @property
    def http_port(self) -> int: ...
    @property
    def rate_limit(self) -> RateLimit: ...
    @property
    def cors_origins(self) -> Sequence[str]: ...
    @property
    def read_timeout_seconds(self) -> int: ...
    @property
    def mode(self) -> str: ...
    @property
    def tokenize(self) -> bool: ...
    @property
    def auth(self) -> AuthService: ...


@dataclass(frozen=True)
class NginxHost:
    """What has to be known of the host.

    nginx_version: as `nginx -v` prints it, "1.22.1". openssl_version: the library Nginx runs with,
    "3.0.19"; None when not known, which leaves out the curve that only newer ones know.
    ipv6: False where the kernel has no IPv6: `listen [::]:443` would keep Nginx from starting.
    max_body_mb: the largest request. name_servers: of the host's own resolver, for gateway.auth.
    acme_webroot: where certbot puts its answers, None without ACME. The remaining ones are
    absolute paths on the host.
    """

    nginx_version: str
    engine_socket: str
    certificate: str
    certificate_key: str
    drain_flag: str
    max_body_mb: int
    openssl_version: str | None = None
    auth_socket: str = "/run/llm-gateway/auth.sock"
    service_socket: str = SERVICE_SOCKET
    access_log: str = "/var/log/nginx/llm-access.log"
    error_log: str = "/var/log/nginx/llm-error.log"
    ipv6: bool = True
    name_servers: tuple[str, ...] = ()
    acme_webroot: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """A path that is passed on. `open`: without a key and without limits."""

    path: str
    method: str
    open: bool = False


CHAT = Endpoint("/v1/chat/completions", "POST")
COMPLETIONS = Endpoint("/v1/completions", "POST")
EMBEDDINGS = Endpoint("/v1/embeddings", "POST")
RESPONSES = Endpoint("/v1/responses", "POST")
MODELS = Endpoint("/v1/models", "GET")
TOKENIZE = Endpoint("/tokenize", "POST")
HEALTH = Endpoint("/health", "GET", open=True)


def endpoints(mode: str, tokenize: bool) -> tuple[Endpoint, ...]:
    """What passes. /v1/responses keeps answers between requests, which an engine behind a bare
    proxy would do for everybody with a key: only the service, which knows keys, passes it."""
    found = [CHAT, COMPLETIONS, EMBEDDINGS, *([RESPONSES] if mode == "full" else []), MODELS]
    return (*found, *([TOKENIZE] if tokenize else []), HEALTH)


def render(settings: GatewaySettings, host: NginxHost) -> NginxFiles:
    """The configuration files of one gateway host. Raises NginxInputError."""
    _check(settings, host)
    limit, full = settings.rate_limit, settings.mode == "full"
    passed = endpoints(settings.mode, settings.tokenize)
    who = "$upstream_http_x_key_id" if full else "$llm_key_id"
    values = {
        **build_of(host.nginx_version, host.openssl_version),
        "host": host,
        "full": full,
        "server_name": settings.server_name,
        "https_port": settings.https_port,
        "http_port": settings.http_port,
        "rate": limit,
        # When the burst is used up, one more request is free after this long.
        "retry_after_limit_seconds": math.ceil(60 / min(limit.ip_per_minute, limit.key_per_minute)),
        "cors_origins": list(settings.cors_origins),
        "exposed_headers": ["X-Request-Id", "Retry-After", *(SERVICE_HEADERS if full else ())],
        "read_timeout_seconds": settings.read_timeout_seconds,
        "upstream_timeout_seconds": settings.read_timeout_seconds
        + (SERVICE_WAITS_SECONDS if full else 0),
        "max_body_mb": host.max_body_mb,
        "endpoints": passed,
        "listed_paths": [endpoint.path for endpoint in passed],
        "foreign_keys": settings.auth.url is not None,
        "auth_url": None if full else _auth_service(settings.auth, host),
        "acme_webroot": host.acme_webroot,
        "log": Log("llm", "key_id", who, "$request_id"),
        "session_cache": "llm_tls",
    }
    text = fill_in("llm-gateway.conf.j2", values)
    return NginxFiles(files={CONFIGURATION: text}, remove=(DOOR_CONFIGURATION, STOCK_SITE))


def _auth_service(auth: AuthService, host: NginxHost) -> Mapping[str, Any] | None:
    """The parts of gateway.auth.url, checked; None where our own service decides."""
    if auth.url is None:
        return None
    parts = urlsplit(auth.url)
    name, path = parts.hostname or "", parts.path or "/"
    if parts.scheme != "https" or not HOST_NAME.fullmatch(name) or not _URL_PATH.fullmatch(path):
        raise NginxInputError(f"gateway.auth.url {auth.url!r} is not https://HOST[:PORT]/PATH")
    check_paths({"gateway.auth.ca_file": auth.ca_file})
    check_numbers(
        {
            "gateway.auth.connect_timeout_seconds": auth.connect_timeout_seconds,
            "gateway.auth.timeout_seconds": auth.timeout_seconds,
        }
    )
    if _address(name):
        raise NginxInputError(
            f"gateway.auth.url {auth.url!r} names an address, and Nginx compares certificates with "
            "names alone (ngx_ssl_check_host)"
        )
    servers = list(auth.resolvers or host.name_servers)
    if not servers:
        raise NginxInputError(
            f"nobody can tell the address of {name} (gateway.auth.url): the host's "
            "/etc/resolv.conf names no server, and gateway.auth.resolvers is empty"
        )
    port = parts.port or 443
    return {
        "host": name,
        "port": port,
        "path": path,
        "host_header": name if port == 443 else f"{name}:{port}",
        "resolvers": [_server(text) for text in servers],
        "ca_file": auth.ca_file,
        "connect_timeout_seconds": auth.connect_timeout_seconds,
        "timeout_seconds": auth.timeout_seconds,
    }


def _server(text: str) -> str:
    address = _address(text)
    if address is None:
        raise NginxInputError(f"the name server {text!r} is no IP address")
    return f"[{address}]" if address.version == 6 else str(address)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _check(settings: GatewaySettings, host: NginxHost) -> None:
    if settings.mode not in ("full", "direct"):
        raise NginxInputError(f"gateway.mode {settings.mode!r} is neither full nor direct")
    if not HOST_NAME.fullmatch(settings.server_name):
        raise NginxInputError(f"gateway.server_name {settings.server_name!r} is not a host name")
    for origin in settings.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            raise NginxInputError(
                f"gateway.cors_origins: {origin!r} is not an origin as a browser sends it "
                "(https://app.example.com, in lower case, without a path or a trailing slash)"
            )
    names = (
        *("engine_socket", "auth_socket", "service_socket", "certificate", "certificate_key"),
        *("drain_flag", "access_log", "error_log"),
    )
    paths = {name: str(getattr(host, name)) for name in names}
    check_paths(paths | ({"acme_webroot": host.acme_webroot} if host.acme_webroot else {}))
    limit = settings.rate_limit
    check_numbers(
        {
            "gateway.https_port": settings.https_port,
            "gateway.http_port": settings.http_port,
            "gateway.read_timeout_seconds": settings.read_timeout_seconds,
            "gateway.max_body_mb": host.max_body_mb,
            "gateway.rate_limit.ip_per_minute": limit.ip_per_minute,
            "gateway.rate_limit.key_per_minute": limit.key_per_minute,
        }
    )
    for name in ("ip_burst", "key_burst"):
        value = getattr(limit, name)
        if not isinstance(value, int) or value < 0:
            raise NginxInputError(
                f"gateway.rate_limit.{name} must be a whole number, not {value!r}"
            )
