"""An organisation's own auth service, asked about every request instead of the key files.

    GET {url}                       what the client sent as Authorization, and
      X-Original-Method, X-Original-URI, X-Request-Id

    2xx         the request may pass. X-Key-Id (letters, digits, . _ -) is who it is from, in logs,
                metrics and the queue's turns; X-Key-Tier is its tier. Without them: "external", and
                the default tier.
    401, 403    refused as such
    else        503: no decision is no access. So is silence, and a certificate that is not good.

The connection is TLS with the name checked; redirections are not followed, proxies not asked.
"""

from __future__ import annotations

import logging
import re
import ssl
from typing import TYPE_CHECKING

import aiohttp

from . import asgi
from .keys import Key
from .refusals import Refusal, invalid_key

if TYPE_CHECKING:
    from .asgi import Scope
    from .config import AuthConfig

log = logging.getLogger("llm_gateway")

EXTERNAL_ID = "external"
# A JSON Web Token with many claims; Nginx takes no longer header line than 8 KiB.
_MAX_HEADER_BYTES = 8192
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_REQUEST_ID = re.compile(rb"[!-~]{1,512}")


class OutsideAuth:
    """Connections to the service; made anew when the configuration names another one."""

    def __init__(self) -> None:
        self._config: AuthConfig | None = None
        self._session: aiohttp.ClientSession | None = None
        self._complained = ""

    async def key_of(self, config: AuthConfig, scope: Scope) -> Key:
        """Who a request is from. Raises Refusal (401, 403, 503)."""
        presented = asgi.header(scope, b"authorization")
        if presented is None or len(presented) > _MAX_HEADER_BYTES:
            # Of two headers each side might take another one: neither is asked about.
            raise invalid_key()
        try:
            session = await self._open(config)
            async with session.get(
                config.url, headers=_asked(scope, presented), allow_redirects=False
            ) as response:
                status, headers = response.status, response.headers
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise self._no_decision(type(error).__name__) from error
        if status == 401:
            raise invalid_key()
        if status == 403:
            raise Refusal(403, "not_allowed", "This API key may not do this.")
        if not 200 <= status < 300:
            raise self._no_decision(f"it answered {status}")
        self._complained = ""
        identity, tier = headers.get("X-Key-Id", ""), headers.get("X-Key-Tier", "")
        return Key(
            id=identity if _NAME.fullmatch(identity) else EXTERNAL_ID,
            name="",
            sha256=b"",
            expires=None,
            tier=tier or None,
        )

    def _no_decision(self, why: str) -> Refusal:
        if why != self._complained:  # once for each new reason, not for each request
            self._complained = why
            log.error("the auth service gave no decision (%s): requests are refused with 503", why)
        return Refusal(
            503,
            "authentication_unavailable",
            "The API key could not be checked just now. Try again after the seconds in "
            "Retry-After.",
            retry_after_seconds=5,
        )

    async def _open(self, config: AuthConfig) -> aiohttp.ClientSession:
        if self._session is not None and self._config == config:
            return self._session
        former = self._session
        # Certificate and name are checked by this context; without a CA the system's are trusted.
        context = ssl.create_default_context(cafile=config.ca)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=config.connect_seconds + config.answer_seconds,
                connect=config.connect_seconds,
            ),
        )
        self._config = config
        if former is not None:
            await former.close()
        return self._session

    async def close(self) -> None:
        """End the connections."""
        if self._session is not None:
            await self._session.close()


def _asked(scope: Scope, presented: bytes) -> dict[str, str]:
    headers = {
        "Authorization": presented.decode("latin-1"),
        "X-Original-Method": str(scope["method"]),
        "X-Original-URI": str(scope["path"]),
    }
    identity = asgi.header(scope, b"x-request-id")
    if identity is not None and _REQUEST_ID.fullmatch(identity):
        headers["X-Request-Id"] = identity.decode()
    return headers
