"""Nginx's configuration for a gateway host: settings and a few facts in, the text of files out.

Nothing is read but the template that ships with this code. Everything that is filled in is checked
here once more, because a stray `;` in a configuration file is another configuration.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import jinja2

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIGURATION = "/etc/nginx/conf.d/llm-gateway.conf"
# Debian's and Ubuntu's stock site also claims default_server on port 80; as a link into
# sites-available it can go without losing anything.
STOCK_SITE = "/etc/nginx/sites-enabled/default"

# Mozilla, server-side TLS guideline 6.0, intermediate (ssl-config-generator, guidelines/6.0.json).
CIPHERS = ":".join(
    (
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "ECDHE-RSA-CHACHA20-POLY1305",
    )
)
_CURVES = "X25519:prime256v1:secp384r1"
# OpenSSL knows it from 3.5; an older one refuses the whole list and Nginx does not start.
_HYBRID_CURVE = "X25519MLKEM768"
_HYBRID_FROM = (3, 5)
# `http2 on;` appeared, and `listen ... http2` was deprecated, in nginx 1.25.1 (CHANGES).
_HTTP2_DIRECTIVE_FROM = (1, 25, 1)
_OLDEST = (1, 22)

# How long a client is asked to wait when the engine or the auth service is away: long enough not to
# be a storm, short enough to be back soon after a restart of the service.
RETRY_AFTER_UNAVAILABLE_SECONDS = 10

_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
)
_ORIGIN = re.compile(
    r"[a-z][a-z0-9+.-]*://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?"
)
_PATH = re.compile(r"/[A-Za-z0-9._/@+-]+")


class NginxInputError(ValueError):
    """A value that cannot be put into a configuration file; the text names it."""


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
    def max_body_mb(self) -> int: ...


@dataclass(frozen=True)
class NginxHost:
    """What has to be known of the host.

    nginx_version: as `nginx -v` prints it, "1.22.1". openssl_version: the library Nginx runs with,
    "3.0.19"; None when not known, which leaves out the curve that only newer ones know.
    ipv6: False where the kernel has no IPv6: `listen [::]:443` would keep Nginx from starting.
    The remaining ones are absolute paths on the host.
    """

    nginx_version: str
    engine_socket: str
    certificate: str
    certificate_key: str
    drain_flag: str
    openssl_version: str | None = None
    auth_socket: str = "/run/llm-gateway/auth.sock"
    access_log: str = "/var/log/nginx/llm-access.log"
    error_log: str = "/var/log/nginx/llm-error.log"
    ipv6: bool = True


@dataclass(frozen=True)
class Endpoint:
    """A path that is passed on. `open`: without a key and without limits."""

    path: str
    method: str
    open: bool = False


ENDPOINTS = (
    Endpoint("/v1/chat/completions", "POST"),
    Endpoint("/v1/completions", "POST"),
    Endpoint("/v1/embeddings", "POST"),
    Endpoint("/v1/models", "GET"),
    Endpoint("/health", "GET", open=True),
)


@dataclass(frozen=True)
class NginxFiles:
    """Path to text of the files to write, and the paths to remove so that they take effect."""

    files: dict[str, str]
    remove: tuple[str, ...]


def render(settings: GatewaySettings, host: NginxHost) -> NginxFiles:
    """The configuration files of one gateway host. Raises NginxInputError."""
    _check(settings, host)
    version = _numbers(host.nginx_version)
    http2_directive = version >= _HTTP2_DIRECTIVE_FROM
    limit = settings.rate_limit
    text = _template().render(
        host=host,
        nginx_version=host.nginx_version,
        server_name=settings.server_name,
        https_port=settings.https_port,
        http_port=settings.http_port,
        listen_parameters="ssl" if http2_directive else "ssl http2",
        http2_directive=http2_directive,
        ciphers=CIPHERS,
        curves=curves(host.openssl_version),
        rate=limit,
        # When the burst is used up, one more request is free after this long.
        retry_after_limit_seconds=math.ceil(60 / min(limit.ip_per_minute, limit.key_per_minute)),
        retry_after_unavailable_seconds=RETRY_AFTER_UNAVAILABLE_SECONDS,
        cors_origins=list(settings.cors_origins),
        read_timeout_seconds=settings.read_timeout_seconds,
        max_body_mb=settings.max_body_mb,
        endpoints=ENDPOINTS,
        listed_paths=[endpoint.path for endpoint in ENDPOINTS],
    )
    return NginxFiles(files={CONFIGURATION: text}, remove=(STOCK_SITE,))


def curves(openssl_version: str | None) -> str:
    """The value of ssl_ecdh_curve for an OpenSSL of this version; None: not known."""
    if openssl_version is not None and _numbers(openssl_version) >= _HYBRID_FROM:
        return f"{_HYBRID_CURVE}:{_CURVES}"
    return _CURVES


def parse_nginx_build(output: str) -> tuple[str, str | None]:
    """(nginx version, version of the OpenSSL it runs with) from the output of `nginx -V`.

    The second is None for LibreSSL and BoringSSL, whose numbers mean something else. Raises
    NginxInputError when there is no nginx version in it.
    """
    version = re.search(r"^nginx version: [^/\s]+/(\d+(?:\.\d+)+)", output, re.MULTILINE)
    if version is None:
        first = output.strip().splitlines()[:1]
        raise NginxInputError(f"no version in the output of nginx -V, which begins {first!r}")
    # "built with OpenSSL 3.0.22 25 Aug 2026 (running with OpenSSL 3.0.19 27 Jan 2026)"; the second
    # part is only there when the two differ.
    running = re.search(r"\(running with OpenSSL (\d+\.\d+\.\d+)", output)
    built = re.search(r"^built with OpenSSL (\d+\.\d+\.\d+)", output, re.MULTILINE)
    found = running or built
    return version[1], found[1] if found else None


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    if match is None:
        raise NginxInputError(f"{version!r} is not a version number")
    return tuple(int(part) for part in match[0].split("."))


def _check(settings: GatewaySettings, host: NginxHost) -> None:
    if _numbers(host.nginx_version) < _OLDEST:
        raise NginxInputError(
            f"nginx {host.nginx_version} is older than 1.22, the oldest that is supported"
        )
    if not _HOST_NAME.fullmatch(settings.server_name):
        raise NginxInputError(f"gateway.server_name {settings.server_name!r} is not a host name")
    for origin in settings.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            raise NginxInputError(
                f"gateway.cors_origins: {origin!r} is not an origin as a browser sends it "
                "(https://app.example.com, in lower case, without a path or a trailing slash)"
            )
    for name in (
        "engine_socket",
        "auth_socket",
        "certificate",
        "certificate_key",
        "drain_flag",
        "access_log",
        "error_log",
    ):
        if not _PATH.fullmatch(getattr(host, name)):
            raise NginxInputError(f"{name} {getattr(host, name)!r} is not a plain absolute path")
    limit = settings.rate_limit
    numbers = {
        "gateway.https_port": settings.https_port,
        "gateway.http_port": settings.http_port,
        "gateway.read_timeout_seconds": settings.read_timeout_seconds,
        "gateway.max_body_mb": settings.max_body_mb,
        "gateway.rate_limit.ip_per_minute": limit.ip_per_minute,
        "gateway.rate_limit.ip_burst": limit.ip_burst,
        "gateway.rate_limit.key_per_minute": limit.key_per_minute,
        "gateway.rate_limit.key_burst": limit.key_burst,
    }
    for key, value in numbers.items():
        if not isinstance(value, int) or value < 1:
            raise NginxInputError(f"{key} must be a whole number of 1 or more, not {value!r}")


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    directory = Path(__file__).parents[2] / "templates" / "nginx"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(directory),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - not HTML; _check refuses what would break out
        keep_trailing_newline=True,
    )
    environment.filters["regex_escape"] = re.escape
    return environment.get_template("llm-gateway.conf.j2")
