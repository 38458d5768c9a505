"""python -m tests.bench gateway: what the gateway adds to a stream, beside two other gateways.

A stub engine streams at a set rate (5 chunks/s per stream, as slow as people read). One client asks
it at 1, 50 and 200 streams, with bodies of 1 KiB, in turn
upstream      without anything between
direct        by gateway.mode direct: Nginx with TLS, which asks the auth service
full          by gateway.mode full: Nginx with TLS, then the gateway service
litellm       by LiteLLM's proxy with one key, without TLS
vllm-router   by vllm-router, without TLS and without keys
tls+vllm-router  by Nginx with TLS, which asks the auth service, then vllm-router: no peer in the
              goals, but the same work as `full`, limits and counted prompts left out
Reported:

first     time to the first byte, milliseconds (p50, p99)
late      how much later than the stub sent it a chunk arrives, milliseconds (p50, p99): the stub
          writes its clock into each chunk, one clock for all processes (CLOCK_MONOTONIC)
cpu       CPU milliseconds that the gateway's processes took per request, and the requests per
          CPU-second that this makes

Exit code 1 when a goal is missed, with the goal. Client and stub are processes of their own. At 200
streams they fill two cores: compare there, do not read milliseconds.

--memory asks for 100,000 short answers through mode full, and fails when memory grows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from pyinfra_deploy.keys import keyfile
from tests.bench import gateway_peers as peers
from tests.bench.gateway_goals import missed
from tests.bench.gateway_load import Seen, load, percentile
from tests.bench.gateway_memory import measure_memory
from tests.integration.nginx import whole

RATE = 5.0
CHUNKS = 10
# Streams -> requests of each stream in one pass.
LEVELS = {1: 8, 50: 3, 200: 2}
OURS = ("upstream", "direct", "full")
PEERS = {
    "litellm": peers.litellm,
    "vllm-router": peers.vllm_router,
    "tls+vllm-router": peers.vllm_router_behind_nginx,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.bench gateway")
    parser.add_argument("--passes", type=int, default=3, help="over all rows, one after the other")
    parser.add_argument("--levels", type=int, nargs="+", default=list(LEVELS), choices=LEVELS)
    parser.add_argument("--only", nargs="+", default=[*OURS, *PEERS], choices=[*OURS, *PEERS])
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--memory", action="store_true", help="100,000 requests instead")
    parser.add_argument("--requests", type=int, default=100_000, help="of --memory")
    given = parser.parse_args(arguments)
    if shutil.which("nginx") is None:
        raise SystemExit("nginx is not installed (apt-get install nginx)")
    import uvloop

    print(f"load before: {' '.join(f'{one:.2f}' for one in os.getloadavg())}", flush=True)
    if given.memory:
        return uvloop.run(measure_memory(given.requests))
    rows = uvloop.run(measure(given.levels, given.passes, installed(given.only)))
    print_table(rows)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    goals = missed(rows)
    for goal in goals:
        print(f"MISSED  {goal}")
    return 1 if goals else 0


def installed(wanted: list[str]) -> list[str]:
    """Those that can be run; of the others, how to get them."""
    found = []
    for name in wanted:
        program = name.removeprefix("tls+")
        if name in PEERS and not peers.program(program).exists():
            print(f"{name}: left out, it is not installed. {peers.how_to_install(program)}")
        else:
            found.append(name)
    return found


async def measure(levels: list[int], passes: int, names: list[str]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="gb") as directory:
        place = Path(directory)
        key = keyfile.new_key("bench", datetime.now(UTC), None)
        (place / "keys.json").write_text(json.dumps(keyfile.to_document(1, [key.record])))
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(whole.stub(place, RATE, CHUNKS))
            ways = [whole.direct_upstream(engine, key.plaintext)]
            for name, start in (
                ("direct", whole.direct_mode),
                ("full", whole.full_mode),
                *PEERS.items(),
            ):
                if name in names:
                    ways.append(
                        await stack.enter_async_context(start(place, engine, key.plaintext))
                    )
            seen = {(one.name, level): Seen() for one, level in product(ways, levels)}
            cpu = dict.fromkeys(seen, 0.0)
            # In turn, so that what else the machine does meets all of them.
            for number, level, way in product(range(passes), levels, ways):
                if number == 0:
                    await load(way.door, min(level, 50), 1, engine.length_seconds, CHUNKS)  # warm
                before = way.cpu_seconds()
                found = await load(way.door, level, LEVELS[level], engine.length_seconds, CHUNKS)
                cpu[way.name, level] += way.cpu_seconds() - before
                seen[way.name, level].firsts += found.firsts
                seen[way.name, level].lates += found.lates
                await asyncio.sleep(0.2)
    return [row(name, level, seen[name, level], cpu[name, level]) for name, level in seen]


def row(name: str, level: int, seen: Seen, cpu: float) -> dict[str, Any]:
    requests = len(seen.firsts)
    return {
        "through": name,
        "streams": level,
        "requests": requests,
        "first_p50": percentile(seen.firsts, 50),
        "first_p99": percentile(seen.firsts, 99),
        "late_p50": percentile(seen.lates, 50),
        "late_p99": percentile(seen.lates, 99),
        "cpu_ms": 1000 * cpu / requests,
        "per_cpu_second": requests / cpu if cpu else 0.0,
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'through':16} {'streams':>7} {'requests':>8} {'first p50':>10} {'p99':>8} "
          f"{'late p50':>9} {'p99':>8} {'cpu ms/request':>15} {'requests/cpu-s':>15}")  # fmt: skip
    for one in sorted(rows, key=lambda one: int(one["streams"])):
        print(
            f"{one['through']:16} {one['streams']:>7} {one['requests']:>8} "
            f"{one['first_p50']:>10.2f} {one['first_p99']:>8.2f} "
            f"{one['late_p50']:>9.2f} {one['late_p99']:>8.2f} "
            f"{one['cpu_ms']:>15.2f} {one['per_cpu_second']:>15.0f}"
        )
