"""Keys, admission and answers over a real socket, with engines that do as they are told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.fakes.stub_engine import event
from tests.integration.gateway.running import MODEL, chat, new_key, world


def test_an_answer_and_what_the_engine_gets() -> None:
    async def scenario() -> None:
        async with world() as w:
            answer = await w.post(
                model="short", priority=-5, headers={"X-Request-Id": "r1", "X-Secret": "s"}
            )
            assert answer.status == 200
            assert json.loads(answer.body)["usage"]["completion_tokens"] == 5
            assert answer.headers["x-key-id"] == w.key.record.id
            assert answer.headers["x-prompt-token-count"].isdigit()
            (document,) = w.engines[0].asked("/v1/chat/completions")
            assert document == chat()
            headers = w.engines[0].requests[-1][1]
            assert headers["x-request-id"] == "r1"
            assert {"authorization", "x-secret", "cookie"}.isdisjoint(headers)

    asyncio.run(scenario())


def test_a_stream_passes_byte_for_byte_and_as_it_comes() -> None:
    async def scenario() -> None:
        async with world(rate=10, chunks=4) as w:
            pieces = []
            async with w.stream() as response:
                assert response.headers["Content-Type"].startswith("text/event-stream")
                async for piece in response.content.iter_any():
                    pieces.append(piece)
                    # The engine has not finished while the first pieces are here already.
                    if len(pieces) == 1:
                        assert w.engines[0].active == 1
            assert b"".join(pieces) == b"".join(map(event, range(4))) + b"data: [DONE]\n\n"
            assert len(pieces) >= 4

    asyncio.run(scenario())


@pytest.mark.parametrize("on", [True, False])
def test_cache_use_is_told_only_where_it_is_asked_for(on: bool) -> None:
    async def scenario() -> None:
        async with world(usage={"kv_cache": on}) as w:
            engine = w.engines[0]
            async with w.stream(stream_options={"include_usage": True}) as response:
                streamed = await response.read()
            async with w.stream() as response:
                without = await response.read()
            whole = await w.post()
            plain = b"".join(map(event, range(5)))
            assert streamed.startswith(plain)
            assert streamed.endswith(b"data: [DONE]\n\n")
            final = json.loads(streamed[len(plain) :].split(b"\n\n")[0].removeprefix(b"data: "))
            expected = 37.5 if on else None
            assert final["usage"].get("kv_cache_usage_percent") == expected
            assert without == plain + b"data: [DONE]\n\n"
            assert json.loads(whole.body)["usage"].get("kv_cache_usage_percent") == expected
            assert whole.headers.get("x-kv-cache-usage-percent") == ("37.5" if on else None)
            assert bool([1 for path, _, _ in engine.requests if path == "/metrics"]) == on

    asyncio.run(scenario())


def test_refusals_before_an_engine_is_asked() -> None:
    async def scenario() -> None:
        async with world(
            admission={
                "max_body_bytes": 5000,
                "allowed_parameters": ["temperature", "max_tokens", "n"],
                "maxima": {"n": 2, "max_tokens": 100},
            }
        ) as w:
            stranger = new_key()
            cases = [
                (401, "invalid_api_key", await w.post(key=stranger)),
                (415, "unsupported_media_type", await w.post(headers={"Content-Type": "a/b"})),
                (400, "invalid_json", await w.post(raw=b'{"model": ')),
                (400, "invalid_json", await w.post(raw=b"[" * 2000)),
                (413, "request_too_large", await w.post(raw=b" " * 5001)),
                (404, "model_not_found", await w.post(model="other")),
                (400, "invalid_value", await w.post(messages="x")),
                (400, "parameter_not_allowed", await w.post(logit_bias={})),
                (400, "parameter_above_maximum", await w.post(n=3)),
                (400, "parameter_above_maximum", await w.post(max_tokens=101)),
                (404, "unknown_url", await w.post(path="/tokenize")),
                (404, "unknown_url", await w.post(path="/v1/chat/completions/")),
                (405, "method_not_supported", await w.get("/v1/chat/completions")),
            ]
            for status, code, answer in cases:
                assert (answer.status, answer.error["code"]) == (status, code)
                assert set(answer.error) >= {"message", "type", "param", "code"}
            assert w.engines[0].requests == []
            assert (await w.post()).status == 200
            assert w.engines[0].asked("/v1/chat/completions")[0]["max_completion_tokens"] == 100

    asyncio.run(scenario())


def test_a_prompt_without_room_is_refused_with_what_to_cut() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.engines[0].token_count = 5000
            answer = await w.post()
            assert (answer.status, answer.error["code"]) == (413, "context_length_exceeded")
            assert answer.error["limit"] == 4096
            assert answer.error["prompt_tokens"] == 5000
            assert answer.error["cut_tokens"] == 905
            assert answer.headers["x-prompt-token-count"] == "5000"
            w.engines[0].token_count = 4000
            long = [{"role": "user", "content": "x " * 4000}]
            answer = await w.post(messages=long, max_tokens=100)
            assert answer.error["cut_tokens"] == 4
            assert "at most 96" in answer.error["message"]
            assert (await w.post(messages=long, max_tokens=96)).status == 200

    asyncio.run(scenario())


def test_a_prompt_that_fits_in_any_case_is_counted_beside_the_request() -> None:
    async def scenario() -> None:
        async with world() as w:
            engine = w.engines[0]
            first = await w.post()  # from its count the model's length is known
            assert first.headers["x-prompt-token-count"].isdigit()
            engine.tokenize_mode = "hang"
            engine.arrived.clear()
            second = asyncio.ensure_future(w.post())
            await engine.arrived.wait()  # although the counter says nothing
            second.cancel()
            await w.until(lambda: engine.active == 0)
            engine.tokenize_mode = "normal"
            assert (await w.post()).headers["x-prompt-token-count"].isdigit()

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["error", "nonsense", "hang"])
def test_a_tokenizer_that_fails_stops_nobody(mode: str) -> None:
    async def scenario() -> None:
        async with world(admission={"tokenize_seconds": 0.2}) as w:
            w.engines[0].tokenize_mode = mode
            answer = await w.post()
            assert answer.status == 200
            assert "x-prompt-token-count" not in answer.headers

    asyncio.run(scenario())


def test_a_revoked_key_is_refused_and_its_stream_ends_in_its_own_time() -> None:
    async def scenario() -> None:
        async with world(rate=20, chunks=30) as w:
            async with w.stream() as response:
                await response.content.readany()
                w.write_keys(new_key("other"))

                async def refused() -> bool:
                    return (await w.get("/v1/models")).status == 401

                await w.until(refused)
                rest = await response.read()
            assert rest.endswith(b"data: [DONE]\n\n")
            assert (await w.post()).status == 401

    asyncio.run(scenario())


def test_limits_and_models_of_a_key() -> None:
    async def scenario() -> None:
        async with world() as w:
            second = new_key("second")
            w.write_keys(w.key, second, requests_per_minute=2, models=["short"])

            async def known() -> bool:
                return (await w.get("/v1/models", second)).status == 200

            await w.until(known)
            assert (await w.post(model=MODEL)).status == 403
            listed = json.loads((await w.get("/v1/models")).body)["data"]
            assert [one["id"] for one in listed] == ["short"]
            answer = await w.post(model="short")
            assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
            assert 1 <= int(answer.headers["retry-after"]) <= 31

    asyncio.run(scenario())


def test_generated_tokens_are_charged() -> None:
    async def scenario() -> None:
        async with world(chunks=50) as w:
            w.write_keys(w.key, tokens_per_minute=40)

            async def in_force() -> bool:
                return bool((await w.ready())["serial"] == 2)

            await w.until(in_force)
            assert (await w.post()).status == 200  # 50 of 40: known afterwards only
            answer = await w.post()
            assert (answer.status, answer.error["type"]) == (429, "tokens")
            assert int(answer.headers["retry-after"]) >= 15

    asyncio.run(scenario())


def test_large_bodies_of_text_pass_and_of_many_values_do_not() -> None:
    async def scenario() -> None:
        async with world() as w:
            text = 'a[b]{c},"' * (1 << 20)
            assert (await w.post(chat(messages=[{"role": "user", "content": text}]))).status == 200
            assert w.engines[0].asked("/v1/chat/completions")[-1]["messages"][0]["content"] == text
            values = b",".join([b"[]"] * 1_400_000)
            raw = b'{"model":"short","messages":[{"role":"user","content":[' + values + b"]}]}"
            answer = await w.post(raw=raw)
            assert (answer.status, answer.error["code"]) == (400, "too_many_values")
            # What was held for them is free again.
            assert (await w.post()).status == 200

    asyncio.run(scenario())


def test_an_engine_that_falls_silent_in_a_stream_is_told_and_not_taken_for_its_end() -> None:
    async def scenario() -> None:
        async with world(rate=20, chunks=100, timeouts={"between_bytes_seconds": 1}) as w:
            pieces: list[bytes] = []

            async def read(response: aiohttp.ClientResponse) -> None:
                async for piece in response.content.iter_any():
                    pieces.append(piece)
                    w.engines[0].rate = 0.001

            async with w.stream() as response:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await read(response)
            assert b'"code": "engine_silent"' in b"".join(pieces)
            assert b"[DONE]" not in b"".join(pieces)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("prompt", "tokenizer"),
    [(["some text"] * 20, "normal"), ([[1, 2, 3]] * 14, "normal"), ("some text " * 20, "error")],
    ids=["texts", "ids", "a tokenizer that fails"],
)
def test_a_prompt_that_is_not_counted_is_charged_all_the_same(prompt: Any, tokenizer: str) -> None:
    async def scenario() -> None:
        async with world(chunks=1) as w:
            w.engines[0].tokenize_mode = tokenizer
            w.write_keys(w.key, tokens_per_minute=45)

            async def in_force() -> bool:
                return bool((await w.ready())["serial"] == 2)

            await w.until(in_force)
            # As a stream without usage: nobody tells afterwards what the prompt had.
            document = {"model": MODEL, "prompt": prompt, "stream": True, "max_tokens": 1}
            assert (await w.post(document, path="/v1/completions")).status == 200
            answer = await w.post(document, path="/v1/completions")
            assert (answer.status, answer.error["type"]) == (429, "tokens")

    asyncio.run(scenario())


def test_metrics_have_counts_and_no_secret() -> None:
    async def scenario() -> None:
        async with world() as w:
            await w.post()
            await w.post(model="made-up")
            async with w.stream(stream_options={"include_usage": True}) as response:
                await response.read()
            text = (await w.get("/metrics")).body.decode()
            labels = f'model="{MODEL}",path="/v1/chat/completions",status="200",tier="default"'
            assert f"llm_gateway_requests_total{{{labels}}} 2.0" in text
            assert f'key_id="{w.key.record.id}",kind="generated",model="{MODEL}"}} 10.0' in text
            assert 'llm_gateway_refusals_total{code="model_not_found"} 1.0' in text
            assert 'llm_gateway_breaker_state{backend="e0",state="closed"} 1.0' in text
            assert "llm_gateway_chunk_gap_seconds_bucket" in text
            assert "made-up" not in text
            assert w.key.plaintext not in text
            assert w.key.record.sha256 not in text

    asyncio.run(scenario())


def test_an_engines_own_refusal_passes_unchanged() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.engines[0].mode, w.engines[0].status = "error", 422
            answer = await w.post()
            assert (answer.status, answer.error) == (422, {"message": "broken"})

    asyncio.run(scenario())


def test_a_configuration_is_taken_up_and_a_bad_one_is_not() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.write_config(backends=[w.backend(0, models=["new"], aliases={})])

            async def taken() -> bool:
                return (await w.post(model="new")).status == 200

            await w.until(taken)
            (w.directory / "config.json").write_text('{"schema": 1, "backends": [], "odd": 1}')
            await w.until(lambda: "stays in force" in w.log)
            assert (await w.post(model="new")).status == 200

    asyncio.run(scenario())


def test_without_a_configuration_it_fails_closed() -> None:
    async def scenario() -> None:
        async with world() as w:
            await w.stop()
            (w.directory / "config.json").unlink()
            w._client = None
            w.start()

            async def answers() -> bool:
                try:
                    return (await w.post()).status == 503
                except aiohttp.ClientError:
                    return False

            await w.until(answers)
            assert (await w.get("/health")).status == 503

    asyncio.run(scenario())
