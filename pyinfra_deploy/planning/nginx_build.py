"""What all configurations of Nginx have in common: versions, TLS, templates, checks.

Everything that is filled in is checked once more, because a stray `;` in a configuration file is
another configuration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

if TYPE_CHECKING:
    from collections.abc import Mapping

# Debian's and Ubuntu's stock site claims default_server on port 80; as a link into sites-available
# it can go without losing anything.
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
OLDEST = (1, 22)

# How long a client is asked to wait when what is behind is away: long enough not to be a storm,
# short enough to be back soon after a restart of the service.
RETRY_AFTER_UNAVAILABLE_SECONDS = 10

HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
)
_PATH = re.compile(r"/[A-Za-z0-9._/@+-]+")


class NginxInputError(ValueError):
    """A value that cannot be put into a configuration file; the text names it."""


@dataclass(frozen=True)
class NginxFiles:
    """Path to text of the files to write, and the paths to remove so that they take effect."""

    files: dict[str, str]
    remove: tuple[str, ...]


@dataclass(frozen=True)
class Log:
    """An access log. prefix: of its variables. who: the field that says who asked, by a variable.
    request_id: the variable that tells one request from all others."""

    prefix: str
    who: str
    who_variable: str
    request_id: str


def build_of(nginx_version: str, openssl_version: str | None) -> dict[str, Any]:
    """What every template needs to know of the build. Raises NginxInputError."""
    version = numbers(nginx_version)
    if version < OLDEST:
        raise NginxInputError(
            f"nginx {nginx_version} is older than 1.22, the oldest that is supported"
        )
    directive = version >= _HTTP2_DIRECTIVE_FROM
    return {
        "nginx_version": nginx_version,
        "http2_directive": directive,
        "listen_parameters": "ssl" if directive else "ssl http2",
        "ciphers": CIPHERS,
        "curves": curves(openssl_version),
        "retry_after_unavailable_seconds": RETRY_AFTER_UNAVAILABLE_SECONDS,
    }


def curves(openssl_version: str | None) -> str:
    """The value of ssl_ecdh_curve for an OpenSSL of this version; None: not known."""
    if openssl_version is not None and numbers(openssl_version) >= _HYBRID_FROM:
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


def numbers(version: str) -> tuple[int, ...]:
    """1.22.1 -> (1, 22, 1); what comes after the numbers is not looked at."""
    match = re.match(r"\d+(\.\d+)*", version)
    if match is None:
        raise NginxInputError(f"{version!r} is not a version number")
    return tuple(int(part) for part in match[0].split("."))


def check_paths(paths: Mapping[str, str]) -> None:
    """Raise NginxInputError unless each is a plain absolute path; names are for the error."""
    for name, path in paths.items():
        if not _PATH.fullmatch(path):
            raise NginxInputError(f"{name} {path!r} is not a plain absolute path")


def check_numbers(found: Mapping[str, object]) -> None:
    """Raise NginxInputError unless each is a whole number of 1 or more."""
    for key, value in found.items():
        if not isinstance(value, int) or value < 1:
            raise NginxInputError(f"{key} must be a whole number of 1 or more, not {value!r}")


def fill_in(template: str, values: Mapping[str, Any]) -> str:
    """The text of a template of templates/nginx."""
    return _templates().get_template(template).render(**values)


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parents[2] / "templates" / "nginx"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - not HTML; what would break out is refused before
        # An included file must not end in an empty line of its own.
        keep_trailing_newline=False,
    )
    environment.filters["regex_escape"] = re.escape
    return environment
