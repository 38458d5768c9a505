"""The HTTP proxy that the settings name (model.proxy), for the hub's client and our own requests.

Without one both follow the unit's environment, which a drop-in may set.
"""

from __future__ import annotations

import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from . import fields
from .errors import SpecError

VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")


@dataclass(frozen=True)
class Proxy:
    """url: http://host:port. exceptions: hosts that are asked without it."""

    url: str
    exceptions: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """For a program that follows the usual variables; it sees no others of them."""
        exceptions = ",".join(self.exceptions)
        without = {"no_proxy": exceptions, "NO_PROXY": exceptions, "all_proxy": "", "ALL_PROXY": ""}
        return {**dict.fromkeys(VARIABLES, self.url), **without}


def read(spec: dict[str, Any]) -> Proxy | None:
    """From a spec's proxy and no_proxy. SpecError for one with a password: it would be in every
    environment and log."""
    url, exceptions = fields.optional_text(spec, "proxy"), fields.texts(spec, "no_proxy")
    if url is None:
        return None
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise SpecError(
            f"the proxy of {parts.hostname or url!r} cannot be used",
            "it must be http://HOST:PORT, without a user name or password.",
            "Correct model.proxy.",
        )
    return Proxy(url, tuple(exceptions))


class Handler(urllib.request.ProxyHandler):
    """urllib's, but with exceptions of its own: that one asks the environment's no_proxy."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(dict.fromkeys(("http", "https"), proxy.url))
        self._exceptions = {"no": ",".join(proxy.exceptions)}

    def proxy_open(self, req: urllib.request.Request, proxy: str, type: str) -> Any:  # noqa: ARG002
        """None: go on with the request, as it is now."""
        bypass: Any = vars(urllib.request)["proxy_bypass_environment"]
        if not req.host or bypass(req.host, self._exceptions):
            return None
        parts = urllib.parse.urlsplit(proxy)
        asked_scheme = req.type
        req.set_proxy(parts.netloc, parts.scheme)
        if asked_scheme in (parts.scheme, "https"):  # of https the connection is a tunnel
            return None
        opener: Any = vars(self)["parent"]
        return opener.open(req, timeout=req.timeout)
