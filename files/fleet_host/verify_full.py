"""What only gateway.mode full does, tried as a client: models of a key, long prompts, types.

429 of a key's own limits is not tried: it takes a key that has one, and what clients share is not
to be used up. Nginx's limits are (verify.py, check_burst), from an address that no client has.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

from . import keys
from .verify_service import Failed, Service, chat, expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from .https_client import Reply

LOG = "See journalctl -u llm-gateway, and gateway/config.json below llm_root."
# A letter and a space are a token at least: vocabularies hold words, not several of them.
BYTES_PER_WORD = 2
BEYOND_THE_LIMIT = 1.25

Check = tuple[str, "Callable[[Service], dict[str, Any]]"]


def checks() -> list[Check]:
    """In the order in which they are to be made."""
    return [
        ("model not allowed", check_other_model),
        ("unknown model", check_unknown_model),
        ("content type", check_content_type),
        ("long prompt", check_long_prompt),
    ]


def _error(reply: Reply) -> dict[str, Any]:
    error = reply.json().get("error")
    return error if isinstance(error, dict) else {}


def expect_code(reply: Reply, status: int, code: str) -> dict[str, Any]:
    expect(reply, (status,), LOG)
    error = _error(reply)
    if error.get("code") != code:
        raise Failed(
            f"{reply.method} {reply.path} was answered {status} with the code {error.get('code')}, "
            f"{code} was expected",
            LOG,
            [reply.text()[:300]],
        )
    return error


def check_other_model(service: Service) -> dict[str, Any]:
    """A key that may use no model, the host's own second one, is told so."""
    reply = service.ask(
        "POST", "/v1/chat/completions", chat(service, 1, stream=False), key=keys.denied_key()
    )
    expect_code(reply, 403, "model_not_allowed")
    return {"status": 403}


def check_unknown_model(service: Service) -> dict[str, Any]:
    """A model that nobody serves is refused here, before any engine is asked."""
    body = {**chat(service, 1, stream=False), "model": "no such model"}
    expect_code(service.ask("POST", "/v1/chat/completions", body), 404, "model_not_found")
    return {"status": 404}


def check_content_type(service: Service) -> dict[str, Any]:
    """What is not declared as JSON is not read as such."""
    reply = service.ask(
        "POST",
        "/v1/chat/completions",
        chat(service, 1, stream=False),
        headers={"Content-Type": "text/plain"},
    )
    expect_code(reply, 415, "unsupported_media_type")
    return {"status": 415}


def check_long_prompt(service: Service) -> dict[str, Any]:
    """A prompt beyond the model's length is refused with the limit, its count and what to cut."""
    assert service.full is not None
    if service.full.get("counts_tokens") is False:
        return {"left_out": "gateway.admission.count_tokens is false"}
    listed = service.ask("GET", "/v1/models").json().get("data", [])
    limit = next((one.get("max_model_len") for one in listed if one["id"] == service.model), None)
    if not isinstance(limit, int):
        return {"left_out": "engine.args.max-model-len is no plain number"}
    words = int(limit * BEYOND_THE_LIMIT) + 64
    largest = service.full.get("max_body_bytes")
    if isinstance(largest, int) and words * BYTES_PER_WORD + 4096 > largest:
        return {"left_out": "gateway.max_body_mb is smaller than such a prompt"}
    letters = string.ascii_lowercase
    text = " ".join(letters[number % len(letters)] for number in range(words))
    body = {**chat(service, 1, stream=False), "messages": [{"role": "user", "content": text}]}
    reply = service.ask("POST", "/v1/chat/completions", body, timeout_seconds=120.0)
    if reply.status == 400 and "template" in reply.text().lower():
        body = {"model": service.model, "prompt": text, "max_tokens": 1}
        reply = service.ask("POST", "/v1/completions", body, timeout_seconds=120.0)
    error = expect_code(reply, 413, "context_length_exceeded")
    figures = {name: error.get(name) for name in ("limit", "prompt_tokens", "cut_tokens")}
    if not all(isinstance(value, int) and value > 0 for value in figures.values()):
        raise Failed("413 came without limit, prompt_tokens and cut_tokens", LOG, [str(figures)])
    return {"status": 413, **figures}
