"""A key that is revoked while its answers run: they finish or end, by setting."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.gateway.running import World, new_key, world


async def read_to_its_end(w: World, *, revoked: bool) -> bytes:
    """What a stream's client got, its key having been revoked after the first chunk."""
    async with w.stream() as response:
        text = await response.content.readany()
        if revoked:
            w.write_keys(new_key("somebody else"))
        try:
            async for piece in response.content.iter_any():
                text += piece
        except Exception as error:
            assert type(error).__name__ == "ClientPayloadError"  # noqa: PT017
    return text


@pytest.mark.parametrize("setting", ["finish", "end"])
def test_by_setting_a_revoked_keys_stream_finishes_or_ends(setting: str) -> None:
    async def scenario() -> None:
        endless = setting == "end"
        async with world(rate=20, chunks=100_000 if endless else 40, revoked_streams=setting) as w:
            text = await read_to_its_end(w, revoked=True)
            assert text.endswith(b"data: [DONE]\n\n") is not endless
            assert (b'"code": "key_revoked"' in text) is endless
            assert (await w.get("/v1/models")).status == 401
            if endless:
                await w.engines[0].aborted.wait()

    asyncio.run(scenario())


def test_other_keys_streams_go_on_and_a_wait_is_refused() -> None:
    async def scenario() -> None:
        async with world(rate=40, chunks=60, revoked_streams="end") as w:
            other = new_key("other")
            w.write_keys(w.key, other)

            async def known() -> bool:
                return (await w.get("/v1/models", key=other)).status == 200

            await w.until(known)
            w.engines[0].mode = "hang"
            silent = asyncio.ensure_future(w.post(key=other))
            await w.engines[0].arrived.wait()
            w.engines[0].mode = "normal"
            async with w.stream() as response:
                await response.content.readany()
                w.write_keys(w.key)
                # Nothing of its answer was sent yet: it is refused as the next request would be.
                assert (await silent).status == 401
                assert (await response.read()).endswith(b"data: [DONE]\n\n")

    asyncio.run(scenario())
