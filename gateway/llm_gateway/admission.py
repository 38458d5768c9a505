"""What a request must be before an engine sees it: type, JSON, the fields that we rely on, limits.

Only what this service needs is checked; the rest is the engine's own schema, which answers 400
itself. The engine gets the document that was checked, written again, never the client's bytes: two
parsers that read one text differently (a field twice, say) are how such checks get bypassed.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .bodies import check_values
from .refusals import Refusal, shown

if TYPE_CHECKING:
    from .config import Admission, Config
    from .keys import Key

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
RESPONSES = "/v1/responses"
TOKENIZE = "/tokenize"

# What a request of each kind must have: one of these.
PROMPT_FIELDS = {
    CHAT: ("messages",),
    COMPLETIONS: ("prompt", "prompt_embeds"),
    EMBEDDINGS: ("input", "messages"),
    RESPONSES: ("input",),
    TOKENIZE: ("prompt", "messages"),
}
# How many tokens may be generated, by its name in each API; the first one is set when none is.
MAX_TOKENS_FIELDS = {
    CHAT: ("max_completion_tokens", "max_tokens"),
    COMPLETIONS: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
}
# Always allowed: what asks the question, and what only shapes the answer's transport.
ALWAYS_ALLOWED = frozenset(
    {"model", "messages", "prompt", "input", "instructions", "stream", "stream_options", "user"}
)
# RFC 8259 texts may hold \ud800 alone; Python keeps it, UTF-8 cannot and tokenizers fail on it.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass
class Asked:
    """An admitted request. document: what the engine gets, but for its own name of the model."""

    path: str
    document: dict[str, Any]
    model: str
    stream: bool
    wants_usage: bool
    max_tokens: int | None


def check_type(content_type: bytes | None) -> None:
    """Raise Refusal (415) unless the body is declared as JSON."""
    kind = (content_type or b"").split(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Refusal(
            415,
            "unsupported_media_type",
            "The request's Content-Type must be application/json.",
        )


def read_request(path: str, body: bytes, key: Key, config: Config) -> Asked:
    """Read and check a body. Raises Refusal (400, 403, 404)."""
    admission = config.admission
    check_values(body)
    document = _read_json(body, admission.max_depth)
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise _wrong("model", "model must be the name of a model: GET /v1/models lists them.")
    if model not in config.models:
        raise Refusal(
            404,
            "model_not_found",
            f"The model {shown(model)} does not exist here: GET /v1/models lists those that do.",
            param="model",
        )
    if not may_use(key, model, config):
        raise Refusal(
            403,
            "model_not_allowed",
            f"This API key may not use the model {shown(model)}: GET /v1/models lists its models.",
            param="model",
        )
    # The order among tenants is ours to decide.
    document.pop("priority", None)
    _check_policy(path, document, admission)
    _check_fields(path, document)
    options = document.get("stream_options")
    stream = document.get("stream") is True
    return Asked(
        path=path,
        document=document,
        model=model,
        stream=stream,
        wants_usage=stream and isinstance(options, dict) and options.get("include_usage") is True,
        max_tokens=max_tokens(path, document),
    )


def may_use(key: Key, model: str, config: Config) -> bool:
    """Whether a key may use a model by this name: it, or what it is an alias of, is listed."""
    if key.models is None or model in key.models:
        return True
    return any(backend.served_name(model) in key.models for backend in config.backends)


def max_tokens(path: str, document: dict[str, Any]) -> int | None:
    """How many tokens the request allows to be generated for each answer; None: it does not say."""
    for name in MAX_TOKENS_FIELDS.get(path, ()):
        value = document.get(name)
        if value is not None:
            return int(value)
    return None


def written(document: dict[str, Any]) -> bytes:
    """The document as the engine gets it. Raises Refusal (400) for what JSON or UTF-8 lacks."""
    try:
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except UnicodeEncodeError as error:
        raise _invalid("it has half of a surrogate pair, which is no Unicode text") from error
    except (ValueError, RecursionError) as error:
        raise _invalid("it has a number that is infinite or no number") from error


def _read_json(body: bytes, max_depth: int) -> dict[str, Any]:
    try:
        document = json.loads(body.decode(), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise _invalid("it is not UTF-8") from error
    except RecursionError as error:
        raise _invalid(f"it is nested deeper than {max_depth} levels") from error
    except json.JSONDecodeError as error:
        raise _invalid(f"{error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:
        # NaN, and whole numbers of more than bodies.MAX_DIGITS digits.
        raise _invalid("it has a number that cannot be read") from error
    if not isinstance(document, dict):
        raise Refusal(400, "invalid_json", "The request's body must be a JSON object.")
    _check_depth(document, max_depth)
    if _SURROGATE.search(body):
        written(document)
    return document


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _invalid(reason: str) -> Refusal:
    return Refusal(400, "invalid_json", f"The request's body is not valid JSON: {reason}.")


def _wrong(param: str, message: str, code: str = "invalid_value") -> Refusal:
    return Refusal(400, code, message, param=param)


def _check_depth(document: dict[str, Any], limit: int) -> None:
    level: list[Any] = [document]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _invalid(f"it is nested deeper than {limit} levels")


def _check_policy(path: str, document: dict[str, Any], admission: Admission) -> None:
    if admission.allowed_parameters is not None:
        for name in document:
            if name not in ALWAYS_ALLOWED and name not in admission.allowed_parameters:
                raise _wrong(
                    shown(name),
                    f"The parameter {shown(name)} is not allowed here. Leave it out.",
                    "parameter_not_allowed",
                )
    length_fields = MAX_TOKENS_FIELDS.get(path, ())
    for name, most in admission.maxima.items():
        for field in length_fields if name == "max_tokens" else (name,):
            _check_maximum(document, field, most)
    most_tokens = admission.maxima.get("max_tokens")
    if most_tokens is not None and length_fields:
        given = [name for name in length_fields if document.get(name) is not None]
        if not given:
            document[length_fields[0]] = int(most_tokens)


def _check_maximum(document: dict[str, Any], name: str, most: float) -> None:
    value = document.get(name)
    if value is None:
        return
    if not _is_number(value):
        raise _wrong(name, f"{name} must be a number.")
    if value > most:
        raise _wrong(
            name,
            f"{name} may be at most {most:g} here; the request has {value:g}.",
            "parameter_above_maximum",
        )


def _is_number(value: object) -> bool:
    try:
        return (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        )
    except OverflowError:
        return False


def _check_fields(path: str, document: dict[str, Any]) -> None:
    wanted = PROMPT_FIELDS[path]
    if all(document.get(name) is None for name in wanted):
        raise _wrong(wanted[0], f"{' or '.join(wanted)} is missing.", "missing_required_parameter")
    if path == RESPONSES and document.get("previous_response_id") is not None:
        # An engine keeps answers for whoever knows their id, whatever the key; and behind several
        # engines the next request may come to another one.
        raise _wrong(
            "previous_response_id",
            "Answers are not kept here: leave previous_response_id out, and send the conversation "
            "so far in input.",
            "parameter_not_allowed",
        )
    messages = document.get("messages")
    if messages is not None and not (
        isinstance(messages, list)
        and messages
        and all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in messages)
    ):
        raise _wrong("messages", "messages must be a list of objects, each with a role.")
    for name in ("prompt", "input"):
        value = document.get(name)
        if value is not None and (not isinstance(value, str | list) or value == []):
            raise _wrong(name, f"{name} must be text or a list that is not empty.")
    stream = document.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise _wrong("stream", "stream must be true or false.")
    options = document.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise _wrong("stream_options", "stream_options must be an object.")
    for name in (*MAX_TOKENS_FIELDS.get(path, ()), "n"):
        value = document.get(name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and (not whole or not 0 <= value < 2**31):
            raise _wrong(name, f"{name} must be a whole number.")
