"""The client of the gateway bench: streams spread over time, and when each chunk was here."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from dataclasses import dataclass, field

import aiohttp

from tests.integration.nginx.whole import MODEL, Door

BODY_BYTES = 1024
_SENT = re.compile(rb'"@(\d{13}\.\d{6})')


@dataclass
class Seen:
    """firsts: request sent to first byte; lates: chunk sent by the stub to chunk here. In ms."""

    firsts: list[float] = field(default_factory=list)
    lates: list[float] = field(default_factory=list)


def body() -> bytes:
    """A chat request of about BODY_BYTES."""
    message = {"role": "user", "content": "x " * ((BODY_BYTES - 90) // 2)}
    return json.dumps({"model": MODEL, "stream": True, "messages": [message]}).encode()


async def load(door: Door, streams: int, rounds: int, length_seconds: float, chunks: int) -> Seen:
    """`rounds` requests of each of `streams` clients. A stream that is not whole is an error.

    Connections are opened before they are measured: what a TLS handshake costs is another question.
    """
    seen = Seen()
    document, headers = body(), door.headers()

    async def one(client: aiohttp.ClientSession, number: int) -> None:
        # Streams of real clients do not begin together: spread over the length of one.
        await asyncio.sleep(number / streams * length_seconds)
        async with client.get(
            f"{door.base}/v1/models", headers=headers, server_hostname=door.server_name
        ) as response:
            await response.read()
        for _ in range(rounds):
            await request(client, door, document, headers, chunks, seen)

    async with aiohttp.ClientSession(connector=door.connector()) as client:
        await asyncio.gather(*(one(client, number) for number in range(streams)))
    return seen


async def request(
    client: aiohttp.ClientSession,
    door: Door,
    document: bytes,
    headers: dict[str, str],
    chunks: int,
    seen: Seen,
) -> None:
    """One streamed answer, noted in `seen`."""
    began = time.monotonic()
    first = None
    here = 0
    done = False
    async with client.post(
        f"{door.base}/v1/chat/completions",
        data=document,
        headers=headers,
        server_hostname=door.server_name,
    ) as response:
        if response.status != 200:
            raise SystemExit(f"{door.base}: {response.status} {await response.text()}")
        async for line in response.content:
            now = time.monotonic()
            if first is None:
                first = now - began
            sent = _SENT.search(line)
            if sent is not None:
                here += 1
                seen.lates.append(1000 * (now - float(sent[1])))
            done = done or line.startswith(b"data: [DONE]")
    if first is None or here != chunks or not done:
        raise SystemExit(f"{door.base}: {here} of {chunks} chunks came, [DONE]: {done}")
    seen.firsts.append(1000 * first)


def percentile(values: list[float], percent: int) -> float:
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
