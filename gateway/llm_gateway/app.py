"""The ASGI application that answers Nginx's auth_request.

GET /auth   204 with X-Key-Id and X-Key-Name, 401, or 503 when no key file was ever readable
GET /ready  200 when /auth can decide, else 503; the body names the serial number in force

Nginx takes 2xx as yes, 401 as no, and makes anything else an error that its configuration turns
into 503 (ngx_http_auth_request_module): the service fails closed whatever happens to it.

The paths of the key files are in LLM_GATEWAY_KEYS, separated by colons. The first is required
(keys.json); the others may be missing (verify-key.json, the host's own key for checking itself).
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from . import asgi
from .asgi import Headers
from .keys import bearer_key, find_key
from .table import KeyTable

if TYPE_CHECKING:
    from .asgi import Application, Receive, Scope, Send

Answer = tuple[int, Headers, bytes]

KEYS_VARIABLE = "LLM_GATEWAY_KEYS"


def create_app(table: KeyTable) -> Application:
    """The application over one table of keys."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await asgi.lifespan(receive, send)
        elif scope["type"] == "http":
            status, headers, body = _answer(table, scope)
            await asgi.answer(send, status, headers, body)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    return application


def app_from_environment() -> Application:
    """The application of mode `direct`. Raises SystemExit when LLM_GATEWAY_KEYS is not set."""
    return create_app(table_from_environment())


def table_from_environment() -> KeyTable:
    """The table over the files that LLM_GATEWAY_KEYS names. Raises SystemExit without it."""
    paths = [Path(path) for path in os.environ.get(KEYS_VARIABLE, "").split(":") if path]
    if not paths:
        raise SystemExit(
            f"{KEYS_VARIABLE} is not set: it must name the key files, separated by colons, "
            "for example /srv/llm/gateway/keys.json"
        )
    return KeyTable(paths)


def _answer(table: KeyTable, scope: Scope) -> Answer:
    if scope["path"] not in ("/auth", "/ready"):
        return 404, [], b""
    if scope["method"] not in ("GET", "HEAD"):
        return 405, [(b"allow", b"GET, HEAD")], b""
    if scope["path"] == "/ready":
        return _ready(table)
    return _authenticate(table, scope)


def _authenticate(table: KeyTable, scope: Scope) -> Answer:
    keys = table.current()
    if keys is None:
        return 503, [], b""
    presented = bearer_key(scope["headers"])
    key = find_key(keys, presented, datetime.now(UTC)) if presented is not None else None
    if key is None:
        # The same answer for every reason: it tells a guesser nothing.
        return 401, [(b"www-authenticate", b"Bearer")], b""
    # Names are in any language, header values are ASCII: percent-encoded like a URL.
    name = quote(key.name, safe=" !#$&'()*+,/:;=?@[]~").encode("ascii")
    return 204, [(b"x-key-id", key.id.encode("ascii")), (b"x-key-name", name)], b""


def _ready(table: KeyTable) -> Answer:
    keys = table.current()
    document = {
        "ready": keys is not None,
        "serial": table.serial(),
        "keys": None if keys is None else len(keys),
    }
    return (
        503 if keys is None else 200,
        [(b"content-type", b"application/json")],
        json.dumps(document).encode(),
    )
