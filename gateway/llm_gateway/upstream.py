"""One attempt at one engine: send the request, wait for the answer's first byte.

Until that byte is here nothing went to the client, so another engine may be tried. What an error
says about that:

NotBegunError     the connection could not be made: the request was never read
LostError         the connection broke before any byte of the answer: the engine died, most likely;
                  generating has no effect but its cost, so once more is safe
SilentError       no byte within the time: it may still be working, so it is not asked again
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .backend import Backend
    from .config import Timeouts

# vLLM streams an error that comes after its 200 as an event of this form.
_ERROR_EVENT = b'data: {"error"'
# Of these another engine may do better; 504 means that time has passed, and is no such.
_FAILED = (500, 502, 503)
# The door's own words (templates/nginx/llm-engine-door.conf.j2).
_DRAINING = b'"code":"engine_draining"'


class UpstreamError(Exception):
    """The engine gave no byte of an answer. `reason` is a metric's label."""

    reason = "error"


class NotBegunError(UpstreamError):
    reason = "not_begun"


class LostError(UpstreamError):
    reason = "lost"


class SilentError(UpstreamError):
    reason = "silent"


@dataclass
class Opened:
    """An answer whose first bytes are here. first: b"" only for an answer without a body."""

    response: aiohttp.ClientResponse
    first: bytes

    @property
    def failed(self) -> bool:
        """Whether the engine could not do it, though the request may be good."""
        return self.response.status in _FAILED or self.first.startswith(_ERROR_EVENT)

    @property
    def sent_back(self) -> bool:
        """Whether the door of the engine's host refused it because the engine is drained: nothing
        has begun, and nothing has failed."""
        return self.response.status == 503 and _DRAINING in self.first


async def open_answer(
    backend: Backend, path: str, body: bytes, headers: Mapping[str, str], timeouts: Timeouts
) -> Opened:
    """Send and wait for the first byte. Raises UpstreamError; closes the connection then."""
    response = None
    try:
        async with asyncio.timeout(timeouts.first_byte_seconds):
            response = await backend.request(
                "POST",
                path,
                body=body,
                headers=headers,
                connect_seconds=timeouts.connect_seconds,
            )
            first = await response.content.readany()
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NotBegunError from error
    except TimeoutError as error:
        raise SilentError from error
    except (aiohttp.ClientError, OSError) as error:
        raise LostError from error
    else:
        backend.alive_at = time.monotonic()
        opened, response = Opened(response, first), None
        return opened
    finally:
        if response is not None:
            response.close()


class Listening:
    """Reads an answer to its end; `chunk` raises TimeoutError after `seconds` without a byte.

    Only the time in which the engine is listened to counts: a client that reads slowly makes no
    silent engine. Setting a timer for each chunk would cost more than the chunk, so one looks now
    and then: the time-out may come late by a twentieth.
    """

    def __init__(self, response: aiohttp.ClientResponse, seconds: float) -> None:
        self._content = response.content
        self._seconds = seconds
        self._since: float | None = None
        self._timeout = asyncio.timeout(None)
        self._look: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Listening:
        await self._timeout.__aenter__()
        self._look_again()
        return self

    async def __aexit__(self, *error: Any) -> None:
        assert self._look is not None
        self._look.cancel()
        await self._timeout.__aexit__(*error)

    async def chunk(self) -> bytes:
        """What came since the last one; b"" at the end."""
        self._since = time.monotonic()
        try:
            return await self._content.readany()
        finally:
            self._since = None

    def _look_again(self) -> None:
        if self._since is not None and time.monotonic() - self._since >= self._seconds:
            self._timeout.reschedule(0)
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(self._seconds / 20, self._look_again)


def content_type(opened: Opened) -> str:
    return opened.response.headers.get("Content-Type", "")


def is_stream(opened: Opened) -> bool:
    return content_type(opened).startswith("text/event-stream")


# What of the engine's headers a client gets. Not Connection, Server, Date: those are of one hop.
_PASSED = ("Content-Type", "Content-Encoding", "Cache-Control", "Retry-After", "Allow")


def passed_headers(opened: Opened) -> list[tuple[bytes, bytes]]:
    found = []
    for name in _PASSED:
        value = opened.response.headers.get(name)
        if value is not None:
            found.append((name.lower().encode(), value.encode("latin-1", "replace")))
    return found
