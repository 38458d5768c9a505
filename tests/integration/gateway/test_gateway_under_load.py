"""Under load, through a real Nginx: an engine's process is killed, and keys come and go.

What the service alone does when engines fail is in test_gateway_engines.py.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from pyinfra_deploy.keys import keyfile
from tests.bench.gateway_load import body
from tests.integration.nginx.whole import Door, Stub, Way, full_mode, stub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.skipif(
    shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin") is None,
    reason="nginx is not installed (apt-get install nginx)",
)
CHUNKS = 10
CLIENTS = 20


@dataclass
class Result:
    """One request. problem: what ended it, None for a whole answer."""

    status: int = 0
    chunks: int = 0
    last: bytes = b""
    problem: str | None = None

    @property
    def whole(self) -> bool:
        return self.status == 200 and self.chunks == CHUNKS and self.last == b"data: [DONE]"


@dataclass
class Load:
    """Clients that ask again and again, each as soon as it has its answer."""

    way: Way
    key: str
    results: list[Result] = field(default_factory=list)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[aiohttp.ClientSession]:
        async with aiohttp.ClientSession(connector=self.way.door.connector()) as client:
            tasks = [asyncio.ensure_future(self._client(client)) for _ in range(CLIENTS)]
            try:
                yield client
            finally:
                self._stop.set()
                await asyncio.gather(*tasks)

    async def _client(self, client: aiohttp.ClientSession) -> None:
        while not self._stop.is_set():
            self.results.append(await ask(client, self.way.door, self.key))

    async def more(self, number: int) -> None:
        """Wait for so many more results."""
        wanted = len(self.results) + number
        while len(self.results) < wanted:
            await asyncio.sleep(0.02)


async def ask(client: aiohttp.ClientSession, door: Door, key: str) -> Result:
    result = Result()
    headers = door.headers() | {"Authorization": f"Bearer {key}"}
    try:
        async with client.post(
            f"{door.base}/v1/chat/completions",
            data=body(),
            headers=headers,
            server_hostname=door.server_name,
        ) as response:
            result.status = response.status
            async for line in response.content:
                result.chunks += b'"@' in line
                result.last = line.strip() or result.last
    except aiohttp.ClientError as error:
        result.problem = f"{type(error).__name__}: {error}"
    return result


@dataclass
class World:
    place: Path
    key: keyfile.NewKey
    engines: list[Stub]
    way: Way

    @property
    def keys(self) -> Path:
        return self.place / "keys.json"

    async def service(self, path: str) -> str:
        """What the service says to its own host, over its socket."""
        connector = aiohttp.UnixConnector(str(self.place / "http.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as client,
            client.get(f"http://x{path}") as response,
        ):
            return await response.text()

    async def outstanding(self, engine: str) -> int:
        return int(json.loads(await self.service("/ready"))["backends"][engine]["outstanding"])


@asynccontextmanager
async def world(first_seconds: float = 0.0) -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="gl") as directory:
        place = Path(directory)
        key = keyfile.new_key("load", datetime.now(UTC), None)
        (place / "keys.json").write_text(json.dumps(keyfile.to_document(1, [key.record])))
        async with AsyncExitStack() as inner:
            engines = [
                await inner.enter_async_context(
                    stub(place, 50, CHUNKS, name=name, first_seconds=first_seconds)
                )
                for name in ("one", "two")
            ]
            # Looked at sooner after a failure than by default, so that the test need not wait.
            health = {"open_seconds": 0.5, "max_open_seconds": 0.5}
            start = full_mode(
                place, engines[0], key.plaintext, others=engines[1:], more={"health": health}
            )
            yield World(place, key, engines, await inner.enter_async_context(start))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.05)


def test_one_of_two_engines_is_killed() -> None:
    """Only streams that had begun are lost; the engine is used again when it is back."""

    async def scenario() -> None:
        async with world(first_seconds=0.2) as w:
            load = Load(w.way, w.key.plaintext)
            async with load.running():
                await load.more(3 * CLIENTS)
                assert all(one.whole for one in load.results)
                assert await w.outstanding("two") > 0
                w.engines[1].process.kill()
                await load.more(5 * CLIENTS)
                broken = [one for one in load.results if not one.whole]
                for one in broken:
                    assert one.status == 200, one
                    assert one.chunks > 0, one
                    # It is told, and it does not look whole.
                    assert b"[DONE]" not in one.last
                # The kill met some that had not begun: they went to the other one.
                failovers = re.findall(
                    r'^llm_gateway_failovers_total{backend="two".*} ([0-9.]+)$',
                    await w.service("/metrics"),
                    re.MULTILINE,
                )
                assert sum(map(float, failovers)) > 0
                async with stub(w.place, 50, CHUNKS, name="two", first_seconds=0.2):

                    async def used_again() -> bool:
                        return await w.outstanding("two") > 0

                    await until(used_again)
                    lost = len(broken)
                    await load.more(3 * CLIENTS)
                    assert len([one for one in load.results if not one.whole]) == lost
                    # While there is work it ends: its streams are whole.
                    load._stop.set()
                    while await w.outstanding("two"):
                        await asyncio.sleep(0.05)

    asyncio.run(scenario())


def test_keys_come_go_and_are_rotated_and_nothing_is_dropped() -> None:
    """Each change is in force within seconds, by the file alone, and touches no other key."""

    async def scenario() -> None:
        async with world() as w:
            door = w.way.door
            load = Load(w.way, w.key.plaintext)

            async def becomes(client: aiohttp.ClientSession, key: str, status: int) -> None:
                while (await ask(client, door, key)).status != status:
                    await asyncio.sleep(0.02)

            async with load.running() as client:
                for number in range(3):
                    name = f"passing {number}"
                    made = await asyncio.to_thread(keyfile.create, w.keys, name)
                    await becomes(client, made.plaintext, 200)
                    stream = asyncio.ensure_future(ask(client, door, made.plaintext))
                    await asyncio.sleep(0.05)
                    await asyncio.to_thread(keyfile.revoke, w.keys, name)
                    await becomes(client, made.plaintext, 401)
                    # What had begun before the key was revoked is finished.
                    assert (await stream).whole
                keep_until = datetime.now(UTC) + timedelta(hours=1)
                successor, _ = await asyncio.to_thread(keyfile.rotate, w.keys, "load", keep_until)
                await becomes(client, successor.plaintext, 200)
                # The old one is good until its clients have the new one.
                await load.more(2 * CLIENTS)
                load.key = successor.plaintext
                await load.more(2 * CLIENTS)
                assert (await ask(client, door, w.key.plaintext)).whole
                await asyncio.to_thread(keyfile.revoke, w.keys, w.key.record.id)
                await becomes(client, w.key.plaintext, 401)
                await load.more(2 * CLIENTS)
            failed = [one for one in load.results if not one.whole]
            assert failed == []
            assert len(load.results) > 6 * CLIENTS

    asyncio.run(scenario())
