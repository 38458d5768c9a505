"""Memory of the gateway over many short requests: flat after the warm-up, or exit code 1."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from pyinfra_deploy.keys import keyfile
from tests.bench.gateway_load import Seen, body, request
from tests.integration.nginx import whole

CLIENTS = 16
# A short answer: two chunks, one at once and one a moment later.
CHUNKS, RATE = 2, 1000.0
# Caches, pools and the allocator's arenas are full by then.
WARM_SHARE = 0.2
# What may be fragmentation: of the memory at the end of the warm-up, and in bytes.
ALLOWED_SHARE, ALLOWED_BYTES = 0.05, 4 * 1024 * 1024
MIB = 1024 * 1024


async def measure_memory(requests: int) -> int:
    """Print resident memory as the requests go by; 1 when it grew after the first fifth."""
    with tempfile.TemporaryDirectory(prefix="gb") as directory:
        place = Path(directory)
        key = keyfile.new_key("bench", datetime.now(UTC), None)
        (place / "keys.json").write_text(json.dumps(keyfile.to_document(1, [key.record])))
        async with (
            whole.stub(place, RATE, CHUNKS) as engine,
            whole.full_mode(place, engine, key.plaintext) as way,
        ):
            began = time.monotonic()
            warm: dict[str, int] = {}
            steps = 10
            for step in range(1, steps + 1):
                await _ask(way, requests // steps)
                now = way.memory_bytes()
                if step == int(steps * WARM_SHARE):
                    warm = now
                sizes = ", ".join(f"{name}: {size / MIB:.1f}" for name, size in now.items())
                print(f"{step * requests // steps:>8} requests, "
                      f"{time.monotonic() - began:.0f} s, MiB: {sizes}", flush=True)  # fmt: skip
    grown = [
        f"{name} grew by {(now[name] - size) / MIB:.1f} MiB after the first {WARM_SHARE:.0%}"
        for name, size in warm.items()
        if now[name] - size > max(ALLOWED_BYTES, ALLOWED_SHARE * size)
    ]
    for one in grown:
        print(f"MISSED  {one}")
    return 1 if grown else 0


async def _ask(way: whole.Way, requests: int) -> None:
    document, headers, seen = body(), way.door.headers(), Seen()

    async def one(client: aiohttp.ClientSession, number: int) -> None:
        for _ in range(number, requests, CLIENTS):
            await request(client, way.door, document, headers, CHUNKS, seen)

    async with aiohttp.ClientSession(connector=way.door.connector()) as client:
        await asyncio.gather(*(one(client, number) for number in range(CLIENTS)))
