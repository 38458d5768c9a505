"""The few shapes of ASGI that the service uses, without a framework (asgi.readthedocs.io, HTTP)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from .refusals import Refusal

if TYPE_CHECKING:
    from .bodies import Held

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", b"application/json")


class ClientGoneError(Exception):
    """The client closed its connection before it had its answer."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The value of a request header that occurs once; None without it or with several."""
    values = [value for key, value in scope["headers"] if key == name]
    return values[0] if len(values) == 1 else None


async def read_body(
    scope: Scope, receive: Receive, limit_bytes: int, seconds: float, held: Held
) -> bytes:
    """The whole body, told to `held` as it comes. Raises Refusal (413, 408, 503) and
    ClientGoneError."""
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared[:20]) > limit_bytes:
        raise _too_large(limit_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part = message.get("body", b"")
                size += len(part)
                if size > limit_bytes:
                    raise _too_large(limit_bytes)
                held.add(len(part), limit_bytes)
                parts.append(part)
                if not message.get("more_body"):
                    break
    except TimeoutError as error:
        raise Refusal(
            408,
            "request_timeout",
            f"The request's body did not arrive within {seconds:g} seconds.",
        ) from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit_bytes: int) -> Refusal:
    return Refusal(
        413,
        "request_too_large",
        f"The request body is larger than the {limit_bytes} bytes that are accepted.",
    )


async def wait_until_gone(receive: Receive) -> None:
    """Return when the client closed its connection. Only after the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def answer(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """A whole answer at once."""
    if status != 204:  # RFC 9110, 8.6: no Content-Length in a 204
        headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def answer_json(send: Send, status: int, document: Any, extra: Headers | None = None) -> None:
    """A JSON document as an answer."""
    await answer(send, status, [JSON_TYPE, *(extra or [])], json.dumps(document).encode())


async def refuse(send: Send, refusal: Refusal, extra: Headers | None = None) -> None:
    """A refusal in OpenAI's shape."""
    await answer(
        send, refusal.status, [JSON_TYPE, *refusal.headers(), *(extra or [])], refusal.body()
    )


async def lifespan(
    receive: Receive,
    send: Send,
    startup: Callable[[], Awaitable[None]] | None = None,
    shutdown: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Answer the server's lifespan messages, calling what is to happen at each."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            if startup is not None:
                await startup()
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            if shutdown is not None:
                await shutdown()
            await send({"type": "lifespan.shutdown.complete"})
            return
