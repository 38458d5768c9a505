"""What bodies may cost: how many values one has, and how many bytes all have together.

json.loads runs in one piece, and while it does no stream gets on. Its time goes by the values, not
by the bytes: 16 MiB of text take 0.05 s, 4 MiB of empty arrays a second. Another thread would not
help, as it holds the interpreter's lock all the while.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from .refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# About a tenth of a second each, for reading and for writing again. A prompt of a million token ids
# passes, and a batch of 2,048 texts for embeddings.
MAX_CONTAINERS = 100_000
MAX_STRINGS = 200_000
MAX_COMMAS = 1 << 20
# Of an integer: reading one takes the square of them. The least that Python takes as a limit.
MAX_DIGITS = 640
LARGE_BYTES = 256 * 1024
_HELD_BYTES = 256 * 1024 * 1024


def check_values(body: bytes) -> None:
    """Raise Refusal (400) for more arrays, objects, texts or values than are worth reading."""
    if _few(body) and body.count(b'"') <= 2 * MAX_STRINGS:
        return
    # A text may have all of these in it, and its own quotes are escaped. What is no JSON may be
    # counted wrongly from its first mistake on, which is where json.loads stops.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * MAX_STRINGS or not _few(b"".join(plain.split(b'"')[::2])):
        raise Refusal(
            400,
            "too_many_values",
            f"The request's body has more than {MAX_CONTAINERS} arrays and objects, {MAX_STRINGS} "
            f"texts or {MAX_COMMAS} values. Send it in parts.",
        )


def _few(text: bytes) -> bool:
    containers = text.count(b"[") + text.count(b"{")
    return containers <= MAX_CONTAINERS and text.count(b",") <= MAX_COMMAS


class Bodies:
    """Of all requests of one process, from their first byte to that of their answers."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, size_bytes: int) -> AsyncIterator[None]:
        """Large bodies are read one at a time, and after each the streams get as long."""
        if size_bytes < LARGE_BYTES:
            yield
            return
        async with self._turn:
            began = time.monotonic()
            try:
                yield
            finally:
                await asyncio.sleep(time.monotonic() - began)


class Held:
    """The part of one request in `bodies`."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._bytes = 0

    def add(self, size_bytes: int, largest_bytes: int) -> None:
        """More of its body is here. Raises Refusal (503) when all together are too much.

        largest_bytes: what one body may have, of which a few have room in any case.
        """
        if self._bodies.held_bytes + size_bytes > max(_HELD_BYTES, 4 * largest_bytes):
            raise Refusal(
                503,
                "engine_overloaded",
                "The service is at its limit: too many large requests wait for their answers. Try "
                "again after the seconds in Retry-After.",
                retry_after_seconds=5,
            )
        self._bytes += size_bytes
        self._bodies.held_bytes += size_bytes

    def release(self) -> None:
        """Nobody needs the body any more."""
        self._bodies.held_bytes -= self._bytes
        self._bytes = 0
