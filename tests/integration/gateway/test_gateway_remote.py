"""Engines on other hosts: mutual TLS under one CA, in both directions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.gateway.certificates import Authority
from tests.integration.gateway.running import MODEL, World, world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
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


@contextlib.asynccontextmanager
async def doors(place: Path, engines: int, **backend: Any) -> AsyncIterator[World]:
    """A gateway before engines on other hosts, as a deploy configures it."""
    ours = Authority(place, "ours")
    certificate, key = ours.issue("gateway")
    tls = {"ca": str(ours.ca), "certificate": str(certificate), "key": str(key)}
    async with world(engines) as w:
        backends = []
        for number, engine in enumerate(w.engines):
            engine.sends_back = True
            port = await engine.listen_tls(ours.server_context(f"engine{number}", ours.ca))
            backends.append({
                "name": f"far{number}", "url": f"https://127.0.0.1:{port}", "models": [MODEL],
                "tls": tls, "ready_path": "/ready", **backend,
            })  # fmt: skip
        w.write_config(backends=backends)

        async def taken_up() -> bool:
            return "far0" in (await w.ready())["backends"]

        await w.until(taken_up)
        yield w


def test_two_of_three_engines_that_begin_to_drain_turn_no_client_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, 3) as w:
            stop = asyncio.Event()
            statuses: list[int] = []

            async def client() -> None:
                while not stop.is_set():
                    statuses.append((await w.post()).status)

            clients = [asyncio.ensure_future(client()) for _ in range(24)]
            for pair in ((0, 1), (1, 2), (0, 2)):
                await w.until(lambda: all(engine.active for engine in w.engines))
                for number in pair:
                    w.engines[number].draining = True
                before = len(statuses)
                await w.until(lambda: len(statuses) > before + 100)  # noqa: B023
                for number in pair:
                    w.engines[number].draining = False
            stop.set()
            await asyncio.gather(*clients)
            assert set(statuses) == {200}
            # It was tried: each learned of it by a request, before its /ready was asked.
            assert all(engine.sent_back for engine in w.engines)
            backends = (await w.ready())["backends"].values()
            assert {one["breaker"] for one in backends} == {"closed"}
            metrics = (await w.get("/metrics")).body.decode()
            assert "failovers_total{" not in metrics

    asyncio.run(scenario())


def test_all_that_drain_are_told_as_that(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, 2) as w:
            assert (await w.post()).status == 200
            for engine in w.engines:
                engine.draining = True
            answer = await w.post()
            assert (answer.status, answer.error["code"]) == (503, "engine_draining")
            assert answer.headers["retry-after"].isdigit()

    asyncio.run(scenario())


def serves(release: str, model: str, **more: Any) -> dict[str, Any]:
    return {"release": release, "model": model, "max_model_len": None,
            "priority_scheduling": False, **more}  # fmt: skip


def test_what_an_engine_says_counts_before_the_configuration(tmp_path: Path) -> None:
    """In the middle of a rollout, and after a rollback, engines run what no gateway is told."""

    async def listed(w: World) -> dict[str, Any]:
        data = json.loads((await w.get("/v1/models")).body)["data"]
        return {one["id"]: one["max_model_len"] for one in data}

    async def scenario() -> None:
        told = {"aliases": {"short": MODEL}, "priority_scheduling": True, "max_model_len": 4096}
        async with doors(tmp_path, 2, **told) as w:
            canary, other = w.engines
            assert (await w.post()).status == 200
            assert await listed(w) == {MODEL: 4096, "short": 4096}
            canary.serves = serves("r2", "org/next", max_model_len=100)
            other.serves = serves("r1", MODEL, max_model_len=4096, priority_scheduling=True)

            async def known() -> bool:
                return "org/next" in await listed(w)

            await w.until(known)
            for engine in w.engines:
                engine.requests.clear()
            for name in ("org/next", MODEL, "short", "short"):
                assert (await w.post(model=name)).status == 200
            asked = {engine: engine.asked("/v1/chat/completions") for engine in w.engines}
            assert {body["model"] for body in asked[canary]} == {"org/next"}
            assert {body["model"] for body in asked[other]} == {MODEL}
            # The canary takes no priority, and would refuse a request that has one.
            assert not any("priority" in body for body in asked[canary])
            assert all("priority" in body for body in asked[other])
            # Its length is its own, too.
            canary.token_count = 200
            answer = await w.post(
                model="org/next", messages=[{"role": "user", "content": "x" * 99}]
            )
            assert (answer.status, answer.error["limit"]) == (413, 100)
            canary.serves = serves("r1", MODEL, max_model_len=4096, priority_scheduling=True)

            async def gone() -> bool:
                return "org/next" not in await listed(w)

            await w.until(gone)
            assert (await w.post(model="org/next")).error["code"] == "model_not_found"

    asyncio.run(scenario())


def test_a_new_worker_knows_what_engines_serve_before_its_first_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, 1) as w:
            w.engines[0].serves = serves("r2", "org/next")

            async def known() -> bool:
                return (await w.post(model="org/next")).status == 200

            await w.until(known)
            assert w.process is not None
            before = (await w.ready())["pid"]
            w.process.send_signal(signal.SIGHUP)

            async def another() -> bool:
                assert (await w.post(model="org/next")).status == 200
                return bool((await w.ready())["pid"] != before)

            await w.until(another)

    asyncio.run(scenario())
