"""Ask an engine how many tokens a prompt has.

When it does not tell (down, too slow, an answer that is no count, a prompt that /tokenize does not
take) the request is admitted without a count, and without X-Prompt-Token-Count. The engine checks
the length itself and refuses with 400 what does not fit: the count makes a better answer, earlier,
but a service that stops when its counter does would be a worse one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp

from .admission import written
from .prompt_count import Count, known_count, read_count, tokenize_request

if TYPE_CHECKING:
    from .admission import Asked
    from .backend import Backend
    from .config import Config
    from .dispatch import Dispatcher

_ENGINES_ASKED = 2


async def count_prompt(asked: Asked, dispatcher: Dispatcher, config: Config) -> Count | None:
    """Tokens of the prompt and the model's limit; None: not known."""
    pool = dispatcher.pool(asked.model)
    configured = [
        length
        for name in pool
        if (length := dispatcher.backends[name].config.max_model_len) is not None
    ]
    # Engines of one model that differ: the request may fit into the largest.
    limit = max(configured, default=None)
    known = known_count(asked)
    if known is not None:
        return Count(known, limit)
    if not config.admission.count_tokens:
        return None
    engines = sorted(dispatcher.usable(pool), key=lambda one: one.work)
    for backend in engines[:_ENGINES_ASKED]:
        served = backend.config.served_name(asked.model)
        request = None if served is None else tokenize_request(asked, served)
        if request is None:
            return None
        try:
            count = await _ask(backend, written(request), config)
        except (aiohttp.ClientError, OSError, TimeoutError):
            continue  # the attempt to forward will tell the breaker, with more certainty
        return None if count is None else Count(count.tokens, limit or count.limit)
    return None


async def _ask(backend: Backend, body: bytes, config: Config) -> Count | None:
    async with asyncio.timeout(config.admission.tokenize_seconds):
        response = await backend.request(
            "POST",
            "/tokenize",
            body=body,
            headers={"Content-Type": "application/json"},
            connect_seconds=config.timeouts.connect_seconds,
        )
        async with response:
            answer = await response.read()
    return read_count(answer) if response.status == 200 else None
