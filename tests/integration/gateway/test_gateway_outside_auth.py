"""An organisation's own auth service: asked over verified TLS, and without its yes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from tests.integration.gateway.certificates import Authority
from tests.integration.gateway.running import Answer, World, new_key, world, write_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TOKEN = "Bearer eyJhbGciOi.an-organisations.own-token"


@dataclass
class AuthService:
    status: int = 204
    headers: dict[str, str] = field(default_factory=lambda: {"X-Key-Id": "team-7"})
    asked: list[dict[str, str]] = field(default_factory=list)
    hangs: bool = False
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.headers))
        if self.hangs:
            await asyncio.sleep(3600)
        return web.Response(status=self.status, headers=self.headers)


@contextlib.asynccontextmanager
async def auth_service(authority: Authority) -> AsyncIterator[AuthService]:
    service = AuthService()
    application = web.Application()
    application.router.add_get("/check", service.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("auth"))
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    service.url = f"https://127.0.0.1:{port}/check"
    try:
        yield service
    finally:
        await runner.cleanup()


def auth(service: AuthService, authority: Authority, **more: Any) -> dict[str, Any]:
    return {"url": service.url, "ca": str(authority.ca), **more}


async def asked_as(w: World, token: str | None) -> Answer:
    headers = {"Content-Type": "application/json"} | ({"Authorization": token} if token else {})
    async with w.client().get("http://x/v1/models", headers=headers) as response:
        found = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, found, await response.read())


def test_its_yes_lets_in_and_names_the_caller(tmp_path: Path) -> None:
    async def scenario() -> None:
        ours = Authority(tmp_path, "ours")
        async with auth_service(ours) as service, world(auth=auth(service, ours)) as w:
            answer = await asked_as(w, TOKEN)
            assert (answer.status, answer.headers["x-key-id"]) == (200, "team-7")
            assert service.asked[-1]["Authorization"] == TOKEN
            assert service.asked[-1]["X-Original-URI"] == "/v1/models"
            assert service.asked[-1]["X-Original-Method"] == "GET"
            service.headers = {"X-Key-Id": 'not "plain"'}
            assert (await asked_as(w, TOKEN)).headers["x-key-id"] == "external"
            assert TOKEN.split()[1] not in w.log

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("status", "answered"),
    [(401, 401), (403, 403), (302, 503), (404, 503), (429, 503), (500, 503)],
)
def test_anything_but_a_yes_is_none(tmp_path: Path, status: int, answered: int) -> None:
    async def scenario() -> None:
        ours = Authority(tmp_path, "ours")
        async with auth_service(ours) as service, world(auth=auth(service, ours)) as w:
            service.status = status
            service.headers = {"Location": service.url}
            answer = await asked_as(w, TOKEN)
            assert answer.status == answered
            assert len(service.asked) == 1  # no redirection was followed
            assert json.loads(answer.body)["error"]["code"]
            before = len(service.asked)
            assert (await asked_as(w, None)).status == 401
            assert len(service.asked) == before

    asyncio.run(scenario())


@pytest.mark.parametrize("trouble", ["silent", "stranger", "name", "away", "no CA"])
def test_without_a_decision_everything_is_refused(tmp_path: Path, trouble: str) -> None:
    async def scenario() -> None:
        ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
        async with auth_service(ours) as service, world() as w:
            part = auth(service, other if trouble == "stranger" else ours)
            if trouble == "name":
                part["url"] = service.url.replace("127.0.0.1", "localhost")
            if trouble == "no CA":
                part["ca"] = str(tmp_path / "nothing.crt")
            service.hangs = trouble == "silent"
            w.write_config(auth=part | {"connect_seconds": 1, "answer_seconds": 0.2})
            if trouble == "away":
                part["url"] = "https://127.0.0.1:1/check"
                w.write_config(auth=part)

            async def refused() -> bool:
                return (await asked_as(w, TOKEN)).status == 503

            await w.until(refused)
            # A key of the key file counts no more either.
            answer = await w.get("/v1/models")
            assert answer.status == 503
            assert answer.error["code"] == "authentication_unavailable"
            assert answer.headers["retry-after"]
            assert "gave no decision" in w.log

    asyncio.run(scenario())


def test_the_hosts_own_key_is_known_here(tmp_path: Path) -> None:
    """The deploy tries the host without an account at somebody else's service."""

    async def scenario() -> None:
        ours = Authority(tmp_path, "ours")
        async with auth_service(ours) as service, world(auth=auth(service, ours)) as w:
            service.status = 401
            own = new_key("the host")
            plain = f"sk-hostself{own.plaintext[11:]}"
            entry = {
                "id": "hostself",
                "name": "the host",
                "sha256": hashlib.sha256(plain.encode()).hexdigest(),
                "created": "2026-01-31T09:00:00Z",
                "expires": None,
            }
            write_json(w.directory / "keys.json", {"schema": 1, "serial": 9, "keys": [entry]})

            async def known() -> bool:
                return (await asked_as(w, f"Bearer {plain}")).status == 200

            await w.until(known)
            wrong = plain[:-1] + ("A" if plain[-1] != "A" else "B")
            before = len(service.asked)
            assert (await asked_as(w, f"Bearer {wrong}")).status == 401
            assert len(service.asked) == before

    asyncio.run(scenario())
