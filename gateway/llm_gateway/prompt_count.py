"""How many tokens a prompt has, by the engine's own tokenizer and chat template: POST /tokenize.

vLLM counts the same way for the request itself: vllm/entrypoints/serve/tokenize/protocol.py takes
{model, prompt} or {model, messages, tools, chat_template_kwargs, ...} and answers
{"count": int, "max_model_len": int, "tokens": [...]}, count and limit first.

What it cannot count is left to the engine, which refuses what does not fit itself with 400:
several texts at once, embeddings given as numbers, and inputs of /v1/responses that are no text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from .admission import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, Asked
from .refusals import Refusal

_CHAT_FIELDS = (
    *("messages", "tools", "add_generation_prompt", "continue_final_message"),
    *("add_special_tokens", "chat_template", "chat_template_kwargs", "media_io_kwargs"),
    "mm_processor_kwargs",
)
# Of the chat request, but arguments of the template (ChatCompletionRequest.build_chat_params).
_TEMPLATE_FIELDS = ("documents", "reasoning_effort")
_START_BYTES = 256
# Of English text; only for what is not counted yet.
BYTES_PER_TOKEN = 4
_COUNT = re.compile(rb'"count":\s*(\d{1,9})\b')
_LIMIT = re.compile(rb'"max_model_len":\s*(\d{1,9})\b')


@dataclass(frozen=True)
class Count:
    """Tokens of a prompt, and how many prompt and answer may have together; None: not told."""

    tokens: int
    limit: int | None


def known_count(asked: Asked) -> int | None:
    """The count of a prompt that is given as token ids already, of the longest where there are
    several; None when it is text."""
    found = _ids(asked)
    return None if found is None else max(found)


def charged_tokens(asked: Asked, count: Count | None, body_bytes: int) -> int:
    """What a prompt takes of a key's allowance until the engine tells in `usage`.

    Of several prompts all; of what cannot be counted an estimate. Nothing at all would be a way
    around the limit.
    """
    ids = _ids(asked)
    if ids is not None:
        return sum(ids)
    return count.tokens if count is not None else max(1, body_bytes // BYTES_PER_TOKEN)


def _ids(asked: Asked) -> list[int] | None:
    """The length of each prompt that is given as token ids; None when they are text."""
    prompt = asked.document.get("prompt" if asked.path == COMPLETIONS else "input")
    if asked.path not in (COMPLETIONS, EMBEDDINGS) or not isinstance(prompt, list):
        return None
    if all(isinstance(one, int) for one in prompt):
        return [len(prompt)]
    if all(isinstance(one, list) and all(isinstance(id_, int) for id_ in one) for one in prompt):
        return [len(one) for one in prompt]
    return None


def tokenize_request(asked: Asked, served_name: str) -> dict[str, Any] | None:
    """The body for /tokenize, or None when the engine alone can count this prompt."""
    document = asked.document
    if asked.path == CHAT or (asked.path == EMBEDDINGS and "messages" in document):
        return _chat(document, served_name)
    if asked.path == RESPONSES:
        return _responses(document, served_name)
    prompt = document.get("prompt" if asked.path == COMPLETIONS else "input")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or document.get("truncate_prompt_tokens") is not None:
        return None
    request: dict[str, Any] = {"model": served_name, "prompt": prompt}
    if isinstance(document.get("add_special_tokens"), bool):
        request["add_special_tokens"] = document["add_special_tokens"]
    return request


def _chat(document: dict[str, Any], served_name: str) -> dict[str, Any] | None:
    if document.get("truncate_prompt_tokens") is not None:
        return None
    request: dict[str, Any] = {"model": served_name}
    request |= {name: document[name] for name in _CHAT_FIELDS if document.get(name) is not None}
    template = {name: document[name] for name in _TEMPLATE_FIELDS if document.get(name) is not None}
    given = request.get("chat_template_kwargs")
    if template and (given is None or isinstance(given, dict)):
        request["chat_template_kwargs"] = {**template, **(given or {})}
    return request


def _responses(document: dict[str, Any], served_name: str) -> dict[str, Any] | None:
    if document.get("tools"):
        return None
    messages: list[dict[str, Any]] = []
    if isinstance(document.get("instructions"), str):
        messages.append({"role": "system", "content": document["instructions"]})
    given = document.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        for item in given:
            text = _plain_text(item)
            if text is None:
                return None
            messages.append({"role": item["role"], "content": text})
    return {"model": served_name, "messages": messages}


def _plain_text(item: Any) -> str | None:
    """The text of a message item of /v1/responses; None for all other items."""
    if not isinstance(item, dict) or not isinstance(item.get("role"), str):
        return None
    content = item.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in ("input_text", "output_text"):
            return None
        if not isinstance(part.get("text"), str):
            return None
        parts.append(part["text"])
    return "".join(parts)


def read_count(answer: bytes) -> Count | None:
    """Read /tokenize's answer; None when it is none.

    The token ids of a long prompt are half a megabyte: the numbers before them are read alone.
    """
    start = answer[:_START_BYTES].split(b"[", 1)[0]
    count, limit = _COUNT.search(start), _LIMIT.search(start)
    if count is not None and limit is not None:
        return Count(int(count[1]), int(limit[1]))
    try:
        document = json.loads(answer)
        tokens, most = document["count"], document.get("max_model_len")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(tokens, int) or not isinstance(most, int | None):
        return None
    return Count(tokens, most)


def check_room(asked: Asked, tokens: int, limit: int) -> None:
    """Raise Refusal (413) when prompt and answer do not fit into `limit` together."""
    # Embeddings generate nothing; a chat that does not say how much takes what is left, at least 1.
    least = 0 if asked.path == EMBEDDINGS else max(1, asked.max_tokens or 1)
    over = tokens + least - limit
    if over <= 0:
        return
    extra = {"limit": limit, "prompt_tokens": tokens, "cut_tokens": over}
    told = f"The model takes {limit} tokens, prompt and answer together. The prompt has {tokens}"
    if least > 1:
        extra["max_tokens"] = least
        room = limit - tokens
        advice = f"Shorten the prompt by at least {over} tokens"
        if room >= 1:
            advice += f", or ask for at most {room}"
        message = f"{told} and {least} are asked for. {advice}."
    else:
        message = f"{told}. Shorten it by at least {over} tokens."
    param = "messages" if asked.path == CHAT else "input"
    if param not in asked.document:
        param = "prompt"
    raise Refusal(413, "context_length_exceeded", message, param=param, extra=extra)
