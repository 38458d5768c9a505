"""Engines on other hosts: mutual TLS under one CA, in both directions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.gateway.certificates import Authority
from tests.integration.gateway.running import MODEL, World, world

if TYPE_CHECKING:
    from pathlib import Path


async def remote(w: World, server: Authority, clients: Authority, **tls: Any) -> dict[str, Any]:
    """The first engine behind TLS, as a backend that trusts `server` alone."""
    engine = w.engines[0]
    port = await engine.listen_tls(server.server_context("engine", clients.ca))
    certificate, key = clients.issue("gateway")
    files = {"ca": str(server.ca), "certificate": str(certificate), "key": str(key), **tls}
    return {"name": "far", "url": f"https://127.0.0.1:{port}", "models": [MODEL], "tls": files}


async def in_force(w: World) -> None:
    async def condition() -> bool:
        return list((await w.ready())["backends"]) == ["far"]

    await w.until(condition)


def test_an_engine_behind_mutual_tls(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world() as w:
            ours = Authority(tmp_path, "ours")
            w.write_config(backends=[await remote(w, ours, ours)])
            await in_force(w)
            assert (await w.post()).status == 200
            async with w.stream() as response:
                assert (await response.read()).endswith(b"data: [DONE]\n\n")

    asyncio.run(scenario())


def test_renewed_certificates_are_taken_up_and_cut_no_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(rate=20, chunks=40) as w:
            old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
            backend = await remote(w, old, old)
            w.write_config(backends=[backend])
            await in_force(w)
            async with w.stream() as response:
                await response.content.readany()
                # The whole CA is another one: what connects with the old files is refused.
                port = await w.engines[0].listen_tls(
                    new.server_context("engine", new.ca), int(backend["url"].rsplit(":")[-1])
                )
                assert backend["url"].endswith(str(port))
                certificate, key = new.issue("next")
                for name, path in (("ca", new.ca), ("certificate", certificate), ("key", key)):
                    path.replace(backend["tls"][name])
                w.engines[0].rate = 1000

                async def answered() -> bool:
                    return (await w.post()).status == 200

                await w.until(answered)
                w.engines[0].rate = 20
                assert (await response.read()).endswith(b"data: [DONE]\n\n")

    asyncio.run(scenario())


@pytest.mark.parametrize("stranger", ["server", "client", "name"])
def test_who_is_not_of_the_inventory_gets_nothing(tmp_path: Path, stranger: str) -> None:
    async def scenario() -> None:
        async with world() as w:
            ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
            backend = await remote(w, ours, ours)
            if stranger == "server":  # somebody else answers at the engine's address
                backend["tls"]["ca"] = str(other.ca)
            elif stranger == "client":  # the engine's host does not know this gateway
                certificate, key = other.issue("stranger")
                backend["tls"] |= {"certificate": str(certificate), "key": str(key)}
            else:
                backend["tls"]["server_name"] = "another-host"
            before = len(w.engines[0].requests)
            w.write_config(backends=[backend])
            await in_force(w)
            answer = await w.post()
            assert answer.status == 503
            assert len(w.engines[0].requests) == before

    asyncio.run(scenario())
