"""What passes, what is refused and how, and how prompts are counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llm_gateway.admission import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    Asked,
    check_type,
    read_request,
    written,
)
from llm_gateway.config import Config, parse_config
from llm_gateway.keys import Key
from llm_gateway.prompt_count import (
    Count,
    charged_tokens,
    check_room,
    known_count,
    read_count,
    tokenize_request,
)
from llm_gateway.refusals import Refusal

MESSAGES = [{"role": "user", "content": "hi"}]
BACKEND = {"name": "a", "url": "unix:/a", "models": ["org/m"], "aliases": {"m": "org/m"}}
OTHER = {"name": "b", "url": "unix:/b", "models": ["other"]}


def config(**admission: Any) -> Config:
    document = {"schema": 1, "backends": [BACKEND, OTHER], "admission": admission}
    return parse_config(json.dumps(document).encode())


def key(*models: str) -> Key:
    return Key("k" * 8, "k", b"", None, models=frozenset(models) if models else None)


def ask(document: Any, path: str = CHAT, who: Key | None = None, **admission: Any) -> Asked:
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_request(path, raw, who or key(), config(**admission))


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": MESSAGES, **more}


@pytest.mark.parametrize(
    ("content_type", "passes"),
    [
        (b"application/json", True),
        (b"Application/JSON; charset=utf-8", True),
        (b"application/json-patch+json", False),
        (b"text/plain", False),
        (b"", False),
        (None, False),
    ],
)
def test_content_types(content_type: bytes | None, passes: bool) -> None:
    if passes:
        check_type(content_type)
        return
    with pytest.raises(Refusal) as refused:
        check_type(content_type)
    assert refused.value.status == 415


@pytest.mark.parametrize(
    ("document", "path", "status", "said"),
    [
        (b"", CHAT, 400, "line 1, column 1"),
        (b"[1]", CHAT, 400, "must be a JSON object"),
        (b'{"a": NaN}', CHAT, 400, "number"),
        (b'{"a": ' + b"9" * 5000 + b"}", CHAT, 400, "number"),
        (b"\xff", CHAT, 400, "not UTF-8"),
        (b"[" * 100_000, CHAT, 400, "nested deeper"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, CHAT, 400, "deeper than 64"),
        (rb'{"model": "m", "messages": "\ud800"}', CHAT, 400, "surrogate"),
        ({"messages": MESSAGES}, CHAT, 400, "model must be"),
        (chat(model=7), CHAT, 400, "model must be"),
        (chat(model="x\n" * 300), CHAT, 404, "x?x?"),
        ({"model": "m"}, CHAT, 400, "messages is missing"),
        (
            {"model": "m", "input": "x", "previous_response_id": "r"},
            RESPONSES,
            400,
            "not kept here",
        ),
        ({"model": "m"}, COMPLETIONS, 400, "prompt or prompt_embeds is missing"),
        ({"model": "m"}, EMBEDDINGS, 400, "missing"),
        ({"model": "m"}, RESPONSES, 400, "input is missing"),
        (chat(messages=[]), CHAT, 400, "list of objects"),
        (chat(messages=["x"]), CHAT, 400, "list of objects"),
        (chat(messages=[{"content": "x"}]), CHAT, 400, "each with a role"),
        (chat(stream="yes"), CHAT, 400, "stream must be"),
        (chat(stream_options=True), CHAT, 400, "stream_options must"),
        (chat(max_tokens=1.5), CHAT, 400, "max_tokens must"),
        (chat(max_tokens=True), CHAT, 400, "max_tokens must"),
        (chat(max_tokens=-1), CHAT, 400, "max_tokens must"),
        (chat(n="2"), CHAT, 400, "n must"),
        ({"model": "m", "prompt": []}, COMPLETIONS, 400, "not empty"),
        ({"model": "m", "input": 5}, EMBEDDINGS, 400, "text or a list"),
    ],
)
def test_refusals(document: Any, path: str, status: int, said: str) -> None:
    with pytest.raises(Refusal) as refused:
        ask(document, path)
    assert refused.value.status == status
    assert said in refused.value.message
    told = json.loads(refused.value.body())["error"]
    assert set(told) == {"message", "type", "param", "code"}
    assert len(told["message"]) < 400


@pytest.mark.parametrize(
    ("models", "asked", "passes"),
    [
        ((), "m", True),
        (("m",), "m", True),
        (("org/m",), "m", True),  # the model's own name allows its aliases
        (("org/m",), "org/m", True),
        (("m",), "org/m", False),  # but an alias allows itself alone
        (("m",), "other", False),
        (("other",), "m", False),
    ],
)
def test_models_of_a_key(models: tuple[str, ...], asked: str, passes: bool) -> None:
    if passes:
        assert ask(chat(model=asked), who=key(*models)).model == asked
        return
    with pytest.raises(Refusal) as refused:
        ask(chat(model=asked), who=key(*models))
    assert refused.value.status == 403


@pytest.mark.parametrize(
    ("more", "admission", "code"),
    [
        ({"top_k": 5}, {}, None),
        ({"top_k": 5}, {"allowed_parameters": []}, "parameter_not_allowed"),
        ({"top_k": 5}, {"allowed_parameters": ["top_k"]}, None),
        ({"stream": True, "stream_options": {}}, {"allowed_parameters": []}, None),
        ({"priority": 1}, {"allowed_parameters": []}, None),  # dropped, not refused
        ({"n": 4}, {"maxima": {"n": 4}}, None),
        ({"n": 5}, {"maxima": {"n": 4}}, "parameter_above_maximum"),
        ({"n": None}, {"maxima": {"n": 4}}, None),
        ({"temperature": "hot"}, {"maxima": {"temperature": 1}}, "invalid_value"),
        ({"temperature": 10**400}, {"maxima": {"temperature": 1}}, "invalid_value"),
        ({"max_tokens": 11}, {"maxima": {"max_tokens": 10}}, "parameter_above_maximum"),
        ({"max_completion_tokens": 11}, {"maxima": {"max_tokens": 10}}, "parameter_above_maximum"),
        ({"max_tokens": 10}, {"maxima": {"max_tokens": 10}}, None),
    ],
)
def test_parameter_policy(more: dict[str, Any], admission: Any, code: str | None) -> None:
    if code is None:
        assert "priority" not in ask(chat(**more), **admission).document
        return
    with pytest.raises(Refusal) as refused:
        ask(chat(**more), **admission)
    assert (refused.value.status, refused.value.code) == (400, code)


@pytest.mark.parametrize(
    ("path", "document", "field"),
    [
        (CHAT, chat(), "max_completion_tokens"),
        (COMPLETIONS, {"model": "m", "prompt": "x"}, "max_tokens"),
        (RESPONSES, {"model": "m", "input": "x"}, "max_output_tokens"),
        (EMBEDDINGS, {"model": "m", "input": "x"}, None),
    ],
)
def test_a_maximum_of_tokens_is_set_where_none_is_given(
    path: str, document: dict[str, Any], field: str | None
) -> None:
    asked = ask(document, path, maxima={"max_tokens": 10})
    assert {name: asked.document.get(name) for name in asked.document if "max" in name} == (
        {field: 10} if field else {}
    )


def test_what_a_prompt_is_charged() -> None:
    def charged(prompt: Any, count: Count | None = None) -> int:
        asked = ask({"model": "m", "prompt": prompt}, COMPLETIONS)
        return charged_tokens(asked, count, 400)

    assert charged("text", Count(7, None)) == 7
    assert charged("text") == 100
    assert charged(["several", "texts"]) == 100
    assert charged([1, 2, 3], Count(3, None)) == 3
    # What has to fit into the model is the longest; what is worked on is all of them.
    assert charged([[1, 2, 3], [1]], Count(3, None)) == 4


def test_what_is_written_is_what_was_read() -> None:
    document = chat(content='é \u2028 "quoted" \\ 客', nested={"a": [1, 2.5, None, True]})
    assert json.loads(written(document)) == document
    with pytest.raises(Refusal) as refused:
        written(chat(temperature=float("inf")))
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("path", "document", "expected"),
    [
        (CHAT, {"messages": [1]}, {"messages": [1]}),
        (CHAT, {"messages": [1], "temperature": 1, "stream": True}, {"messages": [1]}),
        (
            CHAT,
            {"messages": [1], "tools": [2], "chat_template_kwargs": {"a": 1}},
            {"messages": [1], "tools": [2], "chat_template_kwargs": {"a": 1}},
        ),
        (
            CHAT,
            {"messages": [1], "add_generation_prompt": False, "continue_final_message": True},
            {"messages": [1], "add_generation_prompt": False, "continue_final_message": True},
        ),
        (
            CHAT,
            {"messages": [1], "reasoning_effort": "low", "chat_template_kwargs": {"a": 1}},
            {"messages": [1], "chat_template_kwargs": {"reasoning_effort": "low", "a": 1}},
        ),
        (CHAT, {"messages": [1], "truncate_prompt_tokens": 5}, None),
        (COMPLETIONS, {"prompt": "x"}, {"prompt": "x"}),
        (COMPLETIONS, {"prompt": ["x"]}, {"prompt": "x"}),
        (COMPLETIONS, {"prompt": ["x", "y"]}, None),
        (
            COMPLETIONS,
            {"prompt": "x", "add_special_tokens": False},
            {"prompt": "x", "add_special_tokens": False},
        ),
        (COMPLETIONS, {"prompt_embeds": "abc"}, None),
        (EMBEDDINGS, {"input": "x"}, {"prompt": "x"}),
        (EMBEDDINGS, {"messages": [1]}, {"messages": [1]}),
        (
            RESPONSES,
            {"input": "x", "instructions": "be kind"},
            {
                "messages": [
                    {"role": "system", "content": "be kind"},
                    {"role": "user", "content": "x"},
                ]
            },
        ),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]},
            {"messages": [{"role": "user", "content": "x"}]},
        ),
        (RESPONSES, {"input": [{"type": "function_call_output", "output": "x"}]}, None),
        (
            RESPONSES,
            {"input": "x", "previous_response_id": None},
            {"messages": [{"role": "user", "content": "x"}]},
        ),
        (RESPONSES, {"input": "x", "tools": [1]}, None),
    ],
)
def test_what_the_engines_tokenizer_is_asked(
    path: str, document: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    asked = Asked(path, document, "m", False, False, None)
    assert tokenize_request(asked, "org/m") == (
        None if expected is None else {"model": "org/m", **expected}
    )


@pytest.mark.parametrize(
    ("path", "document", "expected"),
    [
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 3),
        (COMPLETIONS, {"prompt": [[1], [1, 2]]}, 2),
        (COMPLETIONS, {"prompt": ["a", "b"]}, None),
        (COMPLETIONS, {"prompt": [1, "b"]}, None),
        (COMPLETIONS, {"prompt": "a"}, None),
        (EMBEDDINGS, {"input": [1, 2]}, 2),
        (RESPONSES, {"input": [1, 2]}, None),
        (CHAT, {"messages": MESSAGES}, None),
    ],
)
def test_prompts_of_token_ids_are_counted_here(
    path: str, document: dict[str, Any], expected: int | None
) -> None:
    assert known_count(Asked(path, document, "m", False, False, None)) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"count":12,"max_model_len":4096,"tokens":[1,2]}', Count(12, 4096)),
        (b'{"count": 12, "max_model_len": 4096, "tokens": [1]}', Count(12, 4096)),
        (b'{"tokens":[1,2],"count":2,"max_model_len":8}', Count(2, 8)),
        (b'{"count":3}', Count(3, None)),
        (b'{"count":"3"}', None),
        (b'{"error":{}}', None),
        (b"<html>", None),
        (b"[]", None),
        (b"", None),
    ],
)
def test_what_the_tokenizer_answers(answer: bytes, expected: Count | None) -> None:
    assert read_count(answer) == expected


@pytest.mark.parametrize(
    ("path", "tokens", "asked_for", "over"),
    [
        (CHAT, 99, None, None),
        (CHAT, 100, None, 1),
        (CHAT, 90, 10, None),
        (CHAT, 91, 10, 1),
        (CHAT, 200, 10, 110),
        (CHAT, 99, 0, None),
        (EMBEDDINGS, 100, None, None),
        (EMBEDDINGS, 101, None, 1),
    ],
)
def test_room_for_an_answer(
    path: str, tokens: int, asked_for: int | None, over: int | None
) -> None:
    asked = Asked(path, {"messages": MESSAGES}, "m", False, False, asked_for)
    if over is None:
        check_room(asked, tokens, 100)
        return
    with pytest.raises(Refusal) as refused:
        check_room(asked, tokens, 100)
    assert (refused.value.status, refused.value.code) == (413, "context_length_exceeded")
    assert refused.value.extra["cut_tokens"] == over
    assert str(over) in refused.value.message
