"""Active health: a completion of one token, and the /ready of an engine's host.

/ready, asked each second, tells whether the host drains, what the engine serves (serves.py), and
that the engine is down; that it is well a completion alone can tell, here as there. It is asked for
only when nothing was heard from the engine for a whole interval, or a request made it doubtful (an
answer 500), or its breaker's time is over: on a busy engine probing costs nothing, and a queue of
its own making cannot look like an illness.

vLLM's /health is not trusted: it stays 200 while inference is stuck.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from typing import TYPE_CHECKING

import aiohttp

from .serves import read_serves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .backend import Backend
    from .config import Config

log = logging.getLogger("llm_gateway")

READY_INTERVAL_SECONDS = 1.0
# How long a new process waits for the first word of engines on other hosts.
FIRST_LOOK_SECONDS = 2.0
# While an engine is doubtful or its breaker is open, but never more often than this.
MIN_PAUSE_SECONDS = 0.25
_MAX_READY_BYTES = 64 * 1024


async def first_look(
    backends: Iterable[Backend], config: Config, rerouted: Callable[[], None]
) -> None:
    """Ask engines on other hosts what they serve, and whether they drain, before the first request:
    a hand-over in the middle of a rollout would begin with names that are not served."""
    asked = [
        asyncio.ensure_future(_ready(backend, config, rerouted))
        for backend in backends
        if backend.config.ready_path is not None
    ]
    if asked:
        _, late = await asyncio.wait(asked, timeout=FIRST_LOOK_SECONDS)
        for one in late:
            one.cancel()


async def watch(
    backend: Backend,
    config: Callable[[], Config],
    changed: Callable[[], None],
    rerouted: Callable[[], None],
) -> None:
    """Probe one engine until cancelled. changed: called when it may be used again, or no more.
    rerouted: called when it serves something else than before."""
    # Several gateways that start together must not probe in step.
    await asyncio.sleep(random.uniform(0, MIN_PAUSE_SECONDS))  # noqa: S311
    while True:
        health = config().health
        by_ready = backend.config.ready_path is not None
        before = (backend.breaker.state(), backend.draining)
        if by_ready:
            asked_at = time.monotonic()
            # Not against what is heard of it in the same moment: a full engine answers late.
            if not await _ready(backend, config(), rerouted) and backend.alive_at < asked_at:
                _take_note(backend, False)
        backend.look_at_flag()
        if _is_due(backend, health.interval_seconds):
            trial = backend.breaker.begin_trial()
            try:
                alive = await _complete(backend, config())
            finally:
                if trial:
                    backend.breaker.end_trial()
            _take_note(backend, alive)
            backend.look_at_flag()
        if (backend.breaker.state(), backend.draining) != before:
            changed()
        await _pause(backend, health.interval_seconds, by_ready)


def _is_due(backend: Backend, interval_seconds: float) -> bool:
    if backend.draining:
        return False
    if backend.probe_wanted.is_set() or backend.breaker.trial_is_free():
        return True
    if backend.breaker.state() != "closed" or not interval_seconds:
        return False
    return time.monotonic() - backend.alive_at >= interval_seconds


async def _pause(backend: Backend, interval_seconds: float, by_ready: bool) -> None:
    backend.probe_wanted.clear()
    seconds = READY_INTERVAL_SECONDS if by_ready else interval_seconds or READY_INTERVAL_SECONDS
    if backend.breaker.state() != "closed":
        seconds = max(MIN_PAUSE_SECONDS, min(seconds, backend.breaker.wait_seconds()))
    elif not by_ready:
        seconds = max(
            MIN_PAUSE_SECONDS, min(seconds, backend.alive_at + seconds - time.monotonic())
        )
    seconds *= random.uniform(0.8, 1.2)  # noqa: S311
    try:
        async with asyncio.timeout(seconds):
            await backend.probe_wanted.wait()
    except TimeoutError:
        return
    # Doubt may come from many requests at once.
    await asyncio.sleep(MIN_PAUSE_SECONDS)
    backend.probe_wanted.set()


def _take_note(backend: Backend, alive: bool) -> None:
    state = backend.breaker.state()
    if alive:
        backend.alive_at = time.monotonic()
        backend.breaker.succeeded()
        if state != "closed":
            log.info("engine %s answers again", backend.config.name)
        return
    backend.breaker.failed()
    if state == "closed" and backend.breaker.state() != "closed":
        log.warning("engine %s does not answer: no requests go to it", backend.config.name)


async def _complete(backend: Backend, config: Config) -> bool:
    """Whether it generates one token. An answer 4xx is life too: the model may be no chat model."""
    document: dict[str, object] = {
        "model": backend.config.models[0],
        "prompt": "1",
        "max_tokens": 1,
        "temperature": 0,
    }
    if backend.config.priority_scheduling:
        # Before all tiers: it is to tell whether the engine lives, not whether it is busy.
        document["priority"] = min(tier.priority for tier in config.tiers.values()) - 1
    try:
        async with asyncio.timeout(config.health.timeout_seconds):
            response = await backend.request(
                "POST",
                "/v1/completions",
                body=json.dumps(document).encode(),
                headers={"Content-Type": "application/json"},
                connect_seconds=config.timeouts.connect_seconds,
            )
            async with response:
                await response.content.read(_MAX_READY_BYTES)
                return response.status < 500
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


async def _ready(backend: Backend, config: Config, rerouted: Callable[[], None]) -> bool:
    """False when its host does not answer, or says that nothing serves there; also takes note of
    whether it drains, and of what it serves."""
    asked_at = time.monotonic()
    assert backend.config.ready_path is not None
    try:
        async with asyncio.timeout(config.health.timeout_seconds):
            response = await backend.request(
                "GET",
                backend.config.ready_path,
                connect_seconds=config.timeouts.connect_seconds,
            )
            async with response:
                text = await response.content.read(_MAX_READY_BYTES)
        document = json.loads(text)
        draining, ready = document.get("draining") is True, document.get("ready") is True
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, AttributeError):
        return False
    if draining or asked_at > backend.refused_at:
        backend.remote_draining = draining
    if ready and response.status == 200 and backend.heard(read_serves(document)):
        log.info("engine %s serves %s now", backend.config.name, backend.config.models[0])
        rerouted()
    # A draining host lives: its streams go on, and its breaker has nothing to say.
    return draining or (ready and response.status == 200)
