"""Whether a model's chat template renders what clients send: a question, instructions, tools."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .fitness_found import some

if TYPE_CHECKING:
    from .fitness_found import Found

# Words that no template contains, so that finding them means that the message is in the prompt.
USER, SYSTEM, RESULT = "Wieviel kostet zebra-4711?", "Answer as briefly as okapi-0815.", "quagga-42"
TOOL = {
    "type": "function",
    "function": {
        "name": "price_of",
        "description": "The price of an article.",
        "parameters": {
            "type": "object",
            "properties": {"article": {"type": "string", "description": "Its number."}},
            "required": ["article"],
        },
    },
}
PLAIN: list[dict[str, Any]] = [{"role": "user", "content": USER}]
INSTRUCTED: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, *PLAIN]
CALLED: list[dict[str, Any]] = [
    *PLAIN,
    {
        "role": "assistant",
        "content": "",
        # vLLM hands the arguments to templates as a mapping, whatever the client wrote.
        "tool_calls": [
            {
                "id": "call00001",
                "type": "function",
                "function": {"name": "price_of", "arguments": {"article": "zebra-4711"}},
            }
        ],
    },
    {"role": "tool", "name": "price_of", "tool_call_id": "call00001", "content": RESULT},
]
MARKER = re.compile(r"<\|[^|<>\s]{1,40}\|>")


def check_template(tokenizer: Any, template: str | None, found: Found, *, tools: bool) -> None:
    """template: None for the tokenizer's own. tools: whether the engine is to serve tool calls."""
    own = template or getattr(tokenizer, "chat_template", None)
    if not own:
        found.warn(
            "the model has no chat template: /v1/chat/completions refuses requests, "
            "/v1/completions works"
        )
        return
    text = _render(tokenizer, template, PLAIN, None)
    if isinstance(text, Exception):
        found.refuse(
            "its chat template does not render a plain question",
            f"{_words(text)}.",
            "Mend the template in a copy of the model and lock that one, or give a right one: "
            "engine.args chat-template.",
        )
        return
    if USER not in text:
        found.refuse(
            "its chat template drops the question",
            f"from a user's message {USER!r} it makes {text[:200]!r}.",
            "Give a right one: engine.args chat-template.",
        )
    _check_markers(tokenizer, text, found)
    instructed = _render(tokenizer, template, INSTRUCTED, None)
    if isinstance(instructed, Exception):
        # Gemma's and some of Mistral's raise an exception of their own words here.
        found.warn(f"its chat template takes no system message: {_words(instructed)}")
    elif SYSTEM not in instructed:
        found.warn("its chat template drops system messages without a word")
    if "tools" in (own if isinstance(own, str) else " ".join(map(str, own.values()))):
        _check_tools(tokenizer, template, found, wanted=tools)


def _check_tools(tokenizer: Any, template: str | None, found: Found, *, wanted: bool) -> None:
    for messages, word, sign in (
        (PLAIN, "the description of a tool", "price_of"),
        (CALLED, "the result of a tool call", RESULT),
    ):
        text = _render(tokenizer, template, messages, [TOOL])
        if isinstance(text, Exception):
            why = f"{_words(text)}."
        elif sign not in text:
            why = f"{sign!r} is not in what it makes."
        else:
            continue
        found.judge(refuse=wanted, what=f"its chat template does not render {word}", why=why)


def _render(
    tokenizer: Any, template: str | None, messages: list[dict[str, Any]], tools: Any
) -> str | Exception:
    more = {} if tools is None else {"tools": tools}
    if template is not None:
        more["chat_template"] = template
    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **more
        )
    except Exception as error:
        return error
    return text if isinstance(text, str) else TypeError(f"it makes {type(text).__name__}, no text")


def _words(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    text = (str(error).splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {text}" + (f" (line {line})" if line else "")


def _check_markers(tokenizer: Any, text: str, found: Found) -> None:
    """<|im_start|> and its like have to be tokens, not spelled out."""
    known = tokenizer.get_vocab()
    strange = sorted({mark for mark in MARKER.findall(text) if mark not in known})
    if strange:
        found.warn(f"its chat template writes {some(strange)}, which the tokenizer does not know")
