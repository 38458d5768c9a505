"""Ask an engine how many tokens a prompt has.

When it does not tell (down, too slow, an answer that is no count, a prompt that /tokenize does not
take) the request is admitted without a count, and without X-Prompt-Token-Count. The engine checks
the length itself and refuses with 400 what does not fit: the count makes a better answer, earlier,
but a service that stops when its counter does would be a worse one.

A prompt so short that it fits however it is counted need not be counted first: the engine gets the
request at once, and the count, which is only a header then, is asked for beside it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp

from .admission import CHAT, COMPLETIONS, written
from .prompt_count import Count, known_count, read_count, tokenize_request

if TYPE_CHECKING:
    from .admission import Asked
    from .backend import Backend
    from .config import Config
    from .dispatch import Dispatcher

_ENGINES_ASKED = 2
# A default system prompt and the instructions for tools; what stands around each message.
_TEMPLATE_TOKENS = 1024
_MESSAGE_TOKENS = 64


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
        if count is None:
            return None
        backend.told_max_model_len = count.limit
        return Count(count.tokens, limit or count.limit)
    return None


def surely_fits(asked: Asked, body_bytes: int, dispatcher: Dispatcher) -> bool:
    """Whether prompt and answer fit into the model whatever the tokenizer makes of the text.

    A token stands for at least one byte of text. What the template adds is estimated generously; if
    that is wrong the engine refuses. Pictures and sound are more tokens than bytes: not sure.
    """
    limits = [dispatcher.backends[name].max_model_len for name in dispatcher.pool(asked.model)]
    known = [limit for limit in limits if limit is not None]
    if not known or len(known) < len(limits) or not _is_text(asked):
        return False
    messages = asked.document.get("messages")
    added = _TEMPLATE_TOKENS + _MESSAGE_TOKENS * (
        len(messages) if isinstance(messages, list) else 1
    )
    return body_bytes + added + (asked.max_tokens or 1) <= min(known)


def _is_text(asked: Asked) -> bool:
    if asked.path == CHAT:
        return all(
            part.get("type") == "text" if isinstance(part, dict) else isinstance(part, str)
            for message in asked.document["messages"]
            for content in (message.get("content"),)
            for part in (content if isinstance(content, list) else [content or ""])
        )
    return asked.path == COMPLETIONS and isinstance(asked.document.get("prompt"), str)


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
