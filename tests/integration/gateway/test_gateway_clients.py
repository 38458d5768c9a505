"""The official client through the service: answers, streams, and refusals as its own exceptions."""

from __future__ import annotations

import asyncio

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from tests.integration.gateway.running import MODEL, World, world


def client(w: World, key: str | None = None) -> openai.AsyncOpenAI:
    transport = httpx2.AsyncHTTPTransport(uds=str(w.socket))
    return openai.AsyncOpenAI(
        api_key=key or w.key.plaintext,
        base_url="http://gateway/v1",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport),
    )


def test_openais_client() -> None:
    async def scenario() -> None:
        async with world(usage={"kv_cache": True}) as w, client(w) as ours:
            assert [one.id async for one in ours.models.list()] == [MODEL, "short"]
            answer = await ours.chat.completions.create(
                model="short", messages=[{"role": "user", "content": "hi"}]
            )
            assert answer.choices[0].message.content == "token " * 5
            stream = await ours.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                stream_options={"include_usage": True},
            )
            text, usage = "", None
            async for chunk in stream:
                text += chunk.choices[0].delta.content or "" if chunk.choices else ""
                usage = chunk.usage or usage
            assert text == "token " * 5
            assert usage is not None
            assert usage.completion_tokens == 5
            assert (usage.model_extra or {})["kv_cache_usage_percent"] == 37.5

    asyncio.run(scenario())


def test_refusals_are_its_own_exceptions() -> None:
    async def scenario() -> None:
        async with world() as w, client(w) as ours, client(w, "sk-wrong") as wrong:
            messages = [ChatCompletionUserMessageParam(role="user", content="hi")]

            async def ask(by: openai.AsyncOpenAI, model: str = MODEL) -> None:
                await by.chat.completions.create(model=model, messages=messages)

            with pytest.raises(openai.AuthenticationError):
                await ask(wrong)
            with pytest.raises(openai.NotFoundError) as missing:
                await ask(ours, "other")
            assert missing.value.code == "model_not_found"
            w.engines[0].token_count = 9000
            w.engines[0].max_model_len = 100
            with pytest.raises(openai.APIStatusError) as long:
                await ask(ours)
            assert (long.value.status_code, long.value.code) == (413, "context_length_exceeded")
            w.engines[0].token_count = None
            w.engines[0].mode = "die_in_stream"
            stream = await ours.chat.completions.create(
                model=MODEL,
                messages=messages,
                stream=True,
            )
            with pytest.raises(openai.APIError, match="stopped in the middle"):
                async for _ in stream:
                    pass

    asyncio.run(scenario())
