"""Two other gateways for the gateway bench, from PyPI, each in an environment of its own.

Pinned with hashes in tests/bench/peers; made with
uv pip compile --generate-hashes --python-version 3.11 (litellm[proxy], vllm-router).
"""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.nginx.running import free_port
from tests.integration.nginx.whole import (
    MODEL,
    ROOT,
    Door,
    Stub,
    Way,
    answers,
    gateway_service,
    nginx,
    nginx_text,
    running,
    tls_door,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PEERS = Path(__file__).parent / "peers"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fleet-bench"


@asynccontextmanager
async def litellm(place: Path, engine: Stub, key: str) -> AsyncIterator[Way]:
    """LiteLLM's proxy with one key and one OpenAI-compatible upstream, one worker."""
    parameters = {
        "model": f"openai/{MODEL}",
        "api_base": f"http://127.0.0.1:{engine.port}/v1",
        "api_key": "none",
    }
    # JSON is YAML.
    config = place / "litellm.yaml"
    config.write_text(
        json.dumps(
            {
                "model_list": [{"model_name": MODEL, "litellm_params": parameters}],
                "general_settings": {"master_key": key},
            }
        )
    )
    port = free_port()
    command = [str(program("litellm")), "--config", str(config), "--host", "127.0.0.1"]
    async with _peer("litellm", place, [*command, "--port", str(port)], port, key) as way:
        yield way


@asynccontextmanager
async def vllm_router(place: Path, engine: Stub, key: str) -> AsyncIterator[Way]:
    """vllm-router before one engine. It knows no keys and no TLS: it does less than the others.

    Not by its default policy, cache_aware: that one asks the engine for /v1/chat/completions/render
    before each request, and waits a second for it where there is none.
    """
    port = free_port()
    command = [
        *(str(program("vllm-router")), "--host", "127.0.0.1", "--port", str(port)),
        *("--worker-urls", f"http://127.0.0.1:{engine.port}", "--log-level", "error"),
        *("--worker-startup-check-interval", "1", "--prometheus-port", str(free_port())),
        *("--policy", "round_robin"),
    ]
    async with _peer("vllm-router", place, command, port, key) as way:
        yield way


@asynccontextmanager
async def vllm_router_behind_nginx(place: Path, engine: Stub, key: str) -> AsyncIterator[Way]:
    """The same with TLS and keys: Nginx and the auth service of mode direct before it."""
    directory, auth = place / "router", place / "router-auth.sock"
    async with vllm_router(place, engine, key) as router:
        text = nginx_text("direct", directory, engine.socket, auth, ())
        port = router.door.base.rsplit(":", 1)[1]
        here = f"server unix:{engine.socket} "
        assert text.count(here) == 1
        text = text.replace(here, f"server 127.0.0.1:{port} ")
        async with (
            gateway_service(place, auth, None) as answering,
            nginx(directory, text) as (https_port, web),
        ):
            door = tls_door(directory, https_port, key)
            yield Way("tls+vllm-router", door, (*router.processes, answering, web))


@asynccontextmanager
async def _peer(
    name: str, place: Path, command: list[str], port: int, key: str
) -> AsyncIterator[Way]:
    # Without the first LiteLLM asks GitHub for prices at its start.
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    log = place / f"{name}.log"
    async with running(command, log, environment, place) as process:
        door = Door(f"http://127.0.0.1:{port}", key)
        await until(lambda: answers(door), log)
        yield Way(name, door, (process.pid,))


def program(name: str) -> Path:
    """Where `how_to_install` puts it."""
    return CACHE / name / "bin" / name


def how_to_install(name: str) -> str:
    place, pins = CACHE / name, (PEERS / f"{name}.txt").relative_to(ROOT)
    return (
        f"uv venv --python 3.11 {place} && "
        f"uv pip install --python {place} --require-hashes -r {pins}"
    )
