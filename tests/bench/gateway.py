"""python -m tests.bench gateway: what the gateway service adds to a stream.

A stub engine streams at a set rate (5 chunks/s per stream, as slow as people read); the same client
asks it directly and through the service, at 1, 50 and 200 streams, bodies of 1 KiB. Reported:

first     time to the first byte, milliseconds (p50, p99)
late      how much later than the stub sent it a chunk arrives, milliseconds (p50, p99): the stub
          writes its clock into each chunk, one clock for all processes (CLOCK_MONOTONIC)
cpu       CPU milliseconds that the service took per request of `chunks` chunks, and the requests
          per CPU-second that this makes

Client and stub are processes of their own. At 200 streams they fill two cores: compare there, do
not read milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from pyinfra_deploy.keys import keyfile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).parents[2]
BODY_BYTES = 1024
RATE = 5.0
CHUNKS = 10
LEVELS = (1, 50, 200)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.bench gateway")
    parser.add_argument("--rounds", type=int, default=3, help="requests of each stream")
    parser.add_argument("--levels", type=int, nargs="+", default=list(LEVELS))
    parser.add_argument("--json", type=Path, help="also write the figures there")
    given = parser.parse_args(arguments)
    import uvloop

    rows = uvloop.run(measure(given.levels, given.rounds))
    print(f"{'through':10} {'streams':>7} {'first p50':>10} {'p99':>8} {'late p50':>9} {'p99':>8} "
          f"{'cpu ms/request':>15} {'requests/cpu-s':>15}")  # fmt: skip
    for row in rows:
        print(f"{row['through']:10} {row['streams']:>7} {row['first_p50']:>10.2f} "
              f"{row['first_p99']:>8.2f} {row['late_p50']:>9.2f} {row['late_p99']:>8.2f} "
              f"{row['cpu_ms']:>15.2f} {row['per_cpu_second']:>15.0f}")  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


async def measure(levels: list[int], rounds: int) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="gb") as directory:
        place = Path(directory)
        key = keyfile.new_key("bench", datetime.now(UTC), None)
        (place / "keys.json").write_text(json.dumps(keyfile.to_document(1, [key.record])))
        backend = {
            "name": "stub",
            "url": f"unix:{place / 'engine.sock'}",
            "models": ["m"],
            "max_concurrent": 1000,
        }
        (place / "config.json").write_text(json.dumps({"schema": 1, "backends": [backend]}))
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(stub(place))
            service = await stack.enter_async_context(gateway(place))
            for streams in levels:
                for through, socket, process in (
                    ("direct", place / "engine.sock", None),
                    ("service", place / "http.sock", service),
                ):
                    await load(socket, key.plaintext, min(streams, 50), 1)  # warm
                    cpu = cpu_seconds(process)
                    firsts, lates = await load(socket, key.plaintext, streams, rounds)
                    cpu = cpu_seconds(process) - cpu
                    requests = streams * rounds
                    rows.append(
                        {
                            "through": through,
                            "streams": streams,
                            "first_p50": percentile(firsts, 50),
                            "first_p99": percentile(firsts, 99),
                            "late_p50": percentile(lates, 50),
                            "late_p99": percentile(lates, 99),
                            "cpu_ms": 1000 * cpu / requests,
                            "per_cpu_second": requests / cpu if cpu else 0.0,
                        }
                    )
    return rows


@asynccontextmanager
async def stub(place: Path) -> AsyncIterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.paced_engine", str(place / "engine.sock"),
         str(RATE), str(CHUNKS)],
        cwd=ROOT,
    )  # fmt: skip
    try:
        await exists(place / "engine.sock")
        yield
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def gateway(place: Path) -> AsyncIterator[int]:
    """The service; yields the process id of its worker."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "gateway"),
        "LLM_GATEWAY_CONFIG": str(place / "config.json"),
        "LLM_GATEWAY_KEYS": str(place / "keys.json"),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "llm_gateway", "--socket", str(place / "http.sock")],
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        await exists(place / "http.sock")
        connector = aiohttp.UnixConnector(str(place / "http.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as client,
            client.get("http://x/ready") as response,
        ):
            yield int((await response.json())["pid"])
    finally:
        process.terminate()
        process.wait()


async def exists(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)


async def load(
    socket: Path, key: str, streams: int, rounds: int
) -> tuple[list[float], list[float]]:
    """(times to first byte, latenesses of chunks) in milliseconds."""
    firsts: list[float] = []
    lates: list[float] = []
    prompt = "x " * ((BODY_BYTES - 150) // 2)
    body = json.dumps(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": prompt}]}
    ).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    async def one(client: aiohttp.ClientSession, number: int) -> None:
        # Streams of real clients do not begin together: spread over the length of one.
        await asyncio.sleep(number / streams * CHUNKS / RATE)
        for _ in range(rounds):
            began = time.monotonic()
            first = None
            async with client.post(
                "http://x/v1/chat/completions", data=body, headers=headers
            ) as response:
                assert response.status == 200, await response.text()
                async for line in response.content:
                    now = time.monotonic()
                    if first is None:
                        first = now - began
                    if line.startswith(b'data: {"sent":'):
                        lates.append(1000 * (now - float(line[14:34])))
            assert first is not None
            firsts.append(1000 * first)

    connector = aiohttp.UnixConnector(str(socket), limit=0, keepalive_timeout=3)
    async with aiohttp.ClientSession(connector=connector) as client:
        await asyncio.gather(*(one(client, number) for number in range(streams)))
    return firsts, lates


def cpu_seconds(process: int | None) -> float:
    """User and system time of a process (proc_pid_stat(5))."""
    if process is None:
        return 0.0
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], percent: int) -> float:
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
