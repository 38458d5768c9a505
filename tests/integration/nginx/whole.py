"""The whole gateway as processes: a stub engine, and Nginx with the service, in either mode.

Each is a context manager that yields a Way: where a client connects, and which processes it is.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from pyinfra_deploy.planning.nginx import NginxHost, render
from tests.fakes.gateway_settings import gateway_settings
from tests.integration.nginx.conftest import write_certificate
from tests.integration.nginx.running import (
    free_port,
    nginx_build,
    nginx_command,
    on_loopback,
    write_configuration,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

ROOT = Path(__file__).parents[3]
MODEL = "m"
SERVER_NAME = "llm.example.com"
START_SECONDS = 120


@dataclass(frozen=True)
class Door:
    """Where a client connects: a Unix socket, or `base` with the certificate to trust."""

    base: str
    key: str
    socket: Path | None = None
    trusted: Path | None = None
    server_name: str | None = None

    def connector(self) -> aiohttp.BaseConnector:
        if self.socket is not None:
            return aiohttp.UnixConnector(str(self.socket), limit=0, keepalive_timeout=3)
        tls = ssl.create_default_context(cafile=str(self.trusted)) if self.trusted else False
        return aiohttp.TCPConnector(limit=0, keepalive_timeout=3, ssl=tls)

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}


@dataclass(frozen=True)
class Way:
    """name: of the table's row. processes: the first ones of those that are the gateway."""

    name: str
    door: Door
    processes: tuple[int, ...] = ()

    def cpu_seconds(self) -> float:
        return sum(map(_cpu_seconds, family(self.processes)))

    def memory_bytes(self) -> dict[str, int]:
        """Resident memory of each process, by what it runs."""
        return {f"{_program(one)} {one}": _resident_bytes(one) for one in family(self.processes)}


@dataclass(frozen=True)
class Stub:
    """The engine that streams at a set rate."""

    socket: Path
    port: int
    rate: float
    chunks: int
    process: subprocess.Popen[bytes]

    @property
    def length_seconds(self) -> float:
        return self.chunks / self.rate


@asynccontextmanager
async def stub(
    place: Path, rate: float, chunks: int, *, name: str = "engine", first_seconds: float = 0.0
) -> AsyncIterator[Stub]:
    """first_seconds: how long it thinks before the first chunk."""
    socket, port = place / f"{name}.sock", free_port()
    # As vLLM does: what a killed one left is in the way.
    socket.unlink(missing_ok=True)
    module = [sys.executable, "-m", "tests.fakes.paced_engine"]
    arguments = [str(socket), str(port), str(rate), str(chunks), str(first_seconds)]
    log = place / f"{name}.log"
    async with running([*module, *arguments], log) as process:
        await until(socket.exists, log)
        yield Stub(socket, port, rate, chunks, process)


def direct_upstream(engine: Stub, key: str) -> Way:
    return Way("upstream", Door("http://engine", key, socket=engine.socket))


@asynccontextmanager
async def direct_mode(
    place: Path, engine: Stub, key: str, origins: Sequence[str] = (), trusted: Path | None = None
) -> AsyncIterator[Way]:
    """Nginx and the auth service, as gateway.mode: direct has it."""
    service = place / "auth.sock"
    text = nginx_text("direct", place / "direct", engine.socket, service, origins)
    async with (
        gateway_service(place, service, None) as answering,
        nginx(place / "direct", text, trusted) as (port, web),
    ):
        yield Way("direct", tls_door(place / "direct", port, key, trusted), (web, answering))


@asynccontextmanager
async def full_mode(
    place: Path,
    engine: Stub,
    key: str,
    origins: Sequence[str] = (),
    trusted: Path | None = None,
    others: Sequence[Stub] = (),
    more: dict[str, Any] | None = None,
) -> AsyncIterator[Way]:
    """Nginx and the gateway service, as gateway.mode: full has it.

    others: engines beside the first. more: of the service's configuration.
    """
    socket = place / "http.sock"
    config = place / "config.json"
    backends = [
        {
            "name": one.socket.stem,
            "url": f"unix:{one.socket}",
            "models": [MODEL],
            "max_concurrent": 1000,
        }
        for one in (engine, *others)
    ]
    config.write_text(json.dumps({"schema": 1, "backends": backends, **(more or {})}))
    text = nginx_text("full", place / "full", socket, socket, origins)
    async with (
        gateway_service(place, socket, config) as answering,
        nginx(place / "full", text, trusted) as (port, web),
    ):
        yield Way("full", tls_door(place / "full", port, key, trusted), (web, answering))


@asynccontextmanager
async def gateway_service(place: Path, socket: Path, config: Path | None) -> AsyncIterator[int]:
    """The service in mode full with a configuration, without one the auth service."""
    environment = {
        "PYTHONPATH": str(ROOT / "gateway"),
        "LLM_GATEWAY_KEYS": str(place / "keys.json"),
    }
    if config is not None:
        environment["LLM_GATEWAY_CONFIG"] = str(config)
    log = place / f"{socket.stem}.log"
    command = [sys.executable, "-m", "llm_gateway", "--socket", str(socket)]
    async with running(command, log, environment) as process:
        await until(lambda: answers(Door("http://x", "", socket=socket), "/ready"), log)
        yield process.pid


@asynccontextmanager
async def nginx(
    directory: Path, text: str, trusted: Path | None = None
) -> AsyncIterator[tuple[int, int]]:
    """(its HTTPS port, its master process)."""
    port = int(text.split("listen 127.0.0.1:")[2].split(" ")[0])
    write_configuration(directory, text, connections=4096)
    log = directory / "nginx.out"
    async with running(nginx_command(directory), log) as process:
        await until(lambda: answers(tls_door(directory, port, "", trusted), "/health"), log)
        yield port, process.pid


def nginx_text(mode: str, directory: Path, behind: Path, auth: Path, origins: Sequence[str]) -> str:
    """The configuration as the deploy renders it, on loopback. behind: engine or service.

    With the certificate in `directory`, tls.crt and tls.key, or one that is made there.
    """
    if not (directory / "tls.crt").exists():
        directory.mkdir()
        write_certificate(directory)
    version, openssl = nginx_build()
    host = NginxHost(
        nginx_version=version,
        openssl_version=openssl,
        engine_socket=str(behind),
        service_socket=str(behind),
        auth_socket=str(auth),
        certificate=str(directory / "tls.crt"),
        certificate_key=str(directory / "tls.key"),
        drain_flag=str(directory / "drain"),
        max_body_mb=1,
        access_log=str(directory / "access.log"),
        error_log=str(directory / "llm-error.log"),
        ipv6=False,
    )
    settings = gateway_settings(
        mode=mode, https_port=free_port(), http_port=free_port(), cors_origins=list(origins)
    )
    (text,) = render(settings, host).files.values()
    return on_loopback(text)


def tls_door(directory: Path, port: int, key: str, trusted: Path | None = None) -> Door:
    return Door(
        f"https://127.0.0.1:{port}",
        key,
        trusted=trusted or directory / "tls.crt",
        server_name=SERVER_NAME,
    )


@asynccontextmanager
async def running(
    command: list[str],
    log: Path,
    environment: dict[str, str] | None = None,
    directory: Path = ROOT,
) -> AsyncIterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=directory, env=os.environ | (environment or {}), stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        await asyncio.to_thread(process.wait)


async def until(condition: object, log: Path) -> None:
    """Wait until it holds; SystemExit with the program's log when it never does."""
    assert callable(condition)
    for _ in range(START_SECONDS * 10):
        found = condition()
        if found is True or (asyncio.iscoroutine(found) and await found):
            return
        await asyncio.sleep(0.1)
    raise SystemExit(f"not up within {START_SECONDS} s; {log}:\n{log.read_text()[-2000:]}")


async def answers(door: Door, path: str = "/v1/models") -> bool:
    try:
        async with (
            aiohttp.ClientSession(connector=door.connector()) as client,
            client.get(
                door.base + path, headers=door.headers(), server_hostname=door.server_name
            ) as response,
        ):
            return response.status == 200
    except (aiohttp.ClientError, OSError):
        return False


def family(processes: tuple[int, ...]) -> list[int]:
    """These and all that descend from them."""
    found = []
    left = list(processes)
    while left:
        one = left.pop()
        found.append(one)
        for task in Path(f"/proc/{one}/task").iterdir():
            left += map(int, (task / "children").read_text().split())
    return found


def _cpu_seconds(process: int) -> float:
    """User and system time of a process (proc_pid_stat(5))."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _program(process: int) -> str:
    words = Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ").split()
    return "service" if "llm_gateway" in words else words[0].removesuffix(":")


def _resident_bytes(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
