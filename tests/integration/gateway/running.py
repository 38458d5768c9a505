"""The service as its unit runs it, between a test's own client and stub engines.

All in one short temporary directory: a Unix socket's path may have 107 bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from pyinfra_deploy.keys import keyfile
from tests.fakes.stub_engine import StubEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Condition = Callable[[], Awaitable[bool]] | Callable[[], bool]

ROOT = Path(__file__).parents[3]
MODEL = "org/model"
SECRET_PROMPT = "the prompt that no log may have"
POLL_SECONDS = 0.02


def new_key(name: str = "a client") -> keyfile.NewKey:
    return keyfile.new_key(name, datetime.now(UTC), None)


def write_json(path: Path, document: Any) -> None:
    """As the deploy does: another file, renamed."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document))
    temporary.replace(path)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


@dataclass
class World:
    """The directory, the engines, the service's process and a client of it."""

    directory: Path
    engines: list[StubEngine]
    key: keyfile.NewKey = field(default_factory=new_key)
    config: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    serial: int = 0
    _client: aiohttp.ClientSession | None = None

    @property
    def socket(self) -> Path:
        return self.directory / "http.sock"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def backend(self, number: int, **more: Any) -> dict[str, Any]:
        return {
            "name": f"e{number}",
            "url": f"unix:{self.engines[number].path}",
            "models": [MODEL],
            "aliases": {"short": MODEL},
            **more,
        }

    def write_config(self, **parts: Any) -> None:
        self.config = {
            "schema": 1,
            "backends": [self.backend(number) for number in range(len(self.engines))],
            "health": {"interval_seconds": 0, "open_seconds": 0.5, "max_open_seconds": 0.5},
            **parts,
        }
        write_json(self.directory / "config.json", self.config)

    def write_keys(self, *keys: keyfile.NewKey, **more: Any) -> None:
        """more: the limits of all of them."""
        self.serial += 1
        document = keyfile.to_document(self.serial, [key.record for key in keys])
        for entry in document["keys"]:
            entry.update(more)
        write_json(self.directory / "keys.json", document)

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "PYTHONPATH": str(ROOT / "gateway"),
            "LLM_GATEWAY_CONFIG": str(self.directory / "config.json"),
            "LLM_GATEWAY_KEYS": str(self.directory / "keys.json"),
        }

    def start(self, pythonpath: str = str(ROOT / "gateway")) -> None:
        environment = self.environment() | {"PYTHONPATH": pythonpath}
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "llm_gateway", "--socket", str(self.socket)],
                stdout=log,
                stderr=log,
                env=environment,
            )

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self.process.wait)

    def client(self) -> aiohttp.ClientSession:
        if self._client is None:
            connector = aiohttp.UnixConnector(str(self.socket), limit=0)
            self._client = aiohttp.ClientSession(connector=connector)
        return self._client

    def headers(self, key: keyfile.NewKey | None = None) -> dict[str, str]:
        plain = (key or self.key).plaintext
        return {"Authorization": f"Bearer {plain}", "Content-Type": "application/json"}

    async def get(self, path: str, key: keyfile.NewKey | None = None) -> Answer:
        async with self.client().get(f"http://x{path}", headers=self.headers(key)) as response:
            return Answer(response.status, _lower(response), await response.read())

    async def post(
        self,
        document: Any = None,
        *,
        path: str = "/v1/chat/completions",
        key: keyfile.NewKey | None = None,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> Answer:
        body = raw if raw is not None else json.dumps(document or chat(**more)).encode()
        async with self.client().post(
            f"http://x{path}", data=body, headers=self.headers(key) | (headers or {})
        ) as response:
            return Answer(response.status, _lower(response), await response.read())

    @contextlib.asynccontextmanager
    async def stream(self, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        body = json.dumps(chat(stream=True, **more)).encode()
        async with self.client().post(
            "http://x/v1/chat/completions", data=body, headers=self.headers()
        ) as response:
            yield response

    async def until(self, condition: Condition) -> None:
        """Wait for what must come; the suite's own patience ends a test that waits in vain."""
        while True:
            found = condition()
            if await found if not isinstance(found, bool) else found:
                return
            assert self.process is None or self.process.poll() is None, self.log
            await asyncio.sleep(POLL_SECONDS)

    async def ready(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((await self.get("/ready")).body)
        return found

    async def serves(self) -> bool:
        if not self.socket.exists():
            return False
        try:
            return bool((await self.ready())["ready"])
        except aiohttp.ClientError:
            return False


def _lower(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def chat(**more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": SECRET_PROMPT}],
        **more,
    }


@contextlib.asynccontextmanager
async def world(
    engines: int = 1, *, rate: float = 400.0, chunks: int = 5, **parts: Any
) -> AsyncIterator[World]:
    """A running service before `engines` stubs. parts: of the configuration."""
    with tempfile.TemporaryDirectory(prefix="gw") as directory:
        place = Path(directory)
        stubs = [
            StubEngine(place / f"e{number}.sock", rate=rate, chunks=chunks)
            for number in range(engines)
        ]
        made = World(place, stubs)
        for stub in stubs:
            await stub.start()
        made.write_config(**parts)
        made.write_keys(made.key)
        made.start()
        try:
            await made.until(made.serves)
            yield made
        finally:
            await made.stop()
            for stub in stubs:
                await stub.kill()
            # Whatever a test did: nothing of it may be in the log.
            assert SECRET_PROMPT not in made.log
            assert made.key.plaintext[11:] not in made.log
