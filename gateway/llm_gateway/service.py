"""The API itself (gateway.mode: full): which address does what, from key to answer.

POST /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses, /tokenize (by setting)
GET  /v1/models   the models that the key may use, as the configuration names them
GET  /health      200 when at least one engine may get requests, else 503; no key needed

Not for clients, so not to be passed by Nginx:
GET  /ready       what serves, drains, which breakers are open; 200 or 503
GET  /metrics     for Prometheus
GET  /auth        as in mode `direct`, so that Nginx can change modes by a reload alone
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import admission, asgi
from .app import create_app
from .asgi import ClientGoneError
from .bodies import Bodies
from .dispatch import Dispatcher
from .health import first_look, watch
from .keys import bearer_key, find_key, is_hosts_own, still_good
from .limits import KeyLimits
from .metrics import CONTENT_TYPE, Metrics
from .outside_auth import OutsideAuth
from .refusals import Refusal, invalid_key, no_such_address, wrong_method
from .request import Request
from .watched import CHECK_INTERVAL_SECONDS, ConfigFile

if TYPE_CHECKING:
    from .asgi import Receive, Scope, Send
    from .config import Config
    from .keys import Key
    from .table import KeyTable

log = logging.getLogger("llm_gateway")

TICK_SECONDS = 0.1
API_PATHS = frozenset(admission.PROMPT_FIELDS)
_READ_PATHS = frozenset({"/v1/models", "/health", "/ready", "/metrics"})
CLIENT_GONE = 499


class Service:
    """All state of one process in mode `full`; `application` is its ASGI application."""

    def __init__(self, table: KeyTable, config_file: ConfigFile) -> None:
        self.table = table
        self.config_file = config_file
        self.limits = KeyLimits()
        self.metrics = Metrics()
        self.bodies = Bodies()
        self.dispatcher: Dispatcher | None = None
        self.stopping = False
        self.began = datetime.now(UTC)
        # Requests that are being answered.
        self.running: set[Request] = set()
        self._outside = OutsideAuth()
        self._authentication = create_app(table)
        self._watchers: dict[int, asyncio.Task[None]] = {}
        self._ticker: asyncio.Task[None] | None = None

    async def application(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; what is refused, and what fails, is answered in OpenAI's shape."""
        if scope["type"] == "lifespan":
            await asgi.lifespan(receive, send, self.start, self.stop)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            path, method = scope["path"], scope["method"]
            if path == "/auth":
                await self._authentication(scope, receive, send)
            elif path in API_PATHS:
                await self._post(scope, receive, send)
            elif path in _READ_PATHS:
                if method in ("GET", "HEAD"):
                    await self._get(path, scope, send)
                else:
                    await asgi.refuse(send, wrong_method("GET, HEAD"))
            else:
                await asgi.refuse(send, no_such_address())

    # --- life ---

    async def start(self) -> None:
        self.look_at_config()
        if (dispatcher := self.dispatcher) is not None:
            backends = tuple(dispatcher.backends.values())
            await first_look(backends, dispatcher.config, dispatcher.rerouted)
        self._ticker = asyncio.ensure_future(self._tick())

    def begin_stop(self) -> float:
        """No new requests are to come; how many seconds those that run may take if it is a stop."""
        self.stopping = True
        config = self.config_file.current
        return 1.0 if config is None else config.stop_seconds

    async def stop(self) -> None:
        tasks = [*self._watchers.values(), *([self._ticker] if self._ticker else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._outside.close()
        if self.dispatcher is not None:
            await self.dispatcher.close()

    def look_at_config(self) -> None:
        """Take up a new configuration: engines come and go, watchers with them."""
        changed = self.config_file.refresh()
        config = self.config_file.current
        if config is None or not changed:
            return
        if self.dispatcher is None:
            self.dispatcher = Dispatcher(config)
        else:
            self.dispatcher.configure(config)
        self._watch_all(self.dispatcher)

    def _watch_all(self, dispatcher: Dispatcher) -> None:
        """One health watch for each engine; one that failed is begun again, and says so."""
        current = {id(backend): backend for backend in dispatcher.backends.values()}
        for identity in [one for one in self._watchers if one not in current]:
            self._watchers.pop(identity).cancel()
        for identity, backend in current.items():
            task = self._watchers.get(identity)
            if task is not None and not task.done():
                continue
            if task is not None and (error := task.exception()) is not None:
                log.error("the health watch of %s failed: %s", backend.config.name, failure(error))
            self._watchers[identity] = asyncio.ensure_future(
                watch(backend, self._config, dispatcher.tick, dispatcher.rerouted)
            )

    def _config(self) -> Config:
        assert self.config_file.current is not None
        return self.config_file.current

    async def _tick(self) -> None:
        looked = 0.0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                if time.monotonic() - looked >= CHECK_INTERVAL_SECONDS:
                    looked = time.monotonic()
                    self.look_at_config()
                    self.limits.forget(self.table.current() or {})
                    self.end_revoked()
                    if self.dispatcher is not None:
                        self._watch_all(self.dispatcher)
                        for backend in self.dispatcher.backends.values():
                            backend.look_at_certificates()
                if self.dispatcher is not None:
                    self.dispatcher.tick()
                    await self.dispatcher.close_retired()
            except Exception as error:
                # Requests go on; without this line nobody would know why nothing is taken up.
                log.error("the periodic check failed: %s", failure(error))

    # --- what is read ---

    async def _get(self, path: str, scope: Scope, send: Send) -> None:
        if path == "/metrics":
            await asgi.answer(
                send, 200, [(b"content-type", CONTENT_TYPE)], self.metrics.text(self.dispatcher)
            )
        elif path == "/ready":
            document = self.ready()
            await asgi.answer_json(send, 200 if document["ready"] else 503, document)
        elif path == "/health":
            serves = self._serves()
            document = {"status": "ok" if serves else "unavailable"}
            await asgi.answer_json(send, 200 if serves else 503, document)
        else:
            try:
                key, config, _ = await self.admit_key(scope)
                self.limits.request(key)
                await asgi.answer_json(
                    send, 200, _models(key, config), [(b"x-key-id", key.id.encode())]
                )
            except Refusal as refusal:
                await asgi.refuse(send, refusal)

    def _serves(self) -> bool:
        dispatcher = self.dispatcher
        return dispatcher is not None and bool(dispatcher.usable(tuple(dispatcher.backends)))

    def ready(self) -> dict[str, Any]:
        """What /ready says: for the host program, for other gateways, and for people."""
        keys = self.table.current()
        backends = self.dispatcher.backends if self.dispatcher is not None else {}
        return {
            "ready": keys is not None and self._serves() and not self.stopping,
            "draining": self.stopping
            or (bool(backends) and all(one.draining for one in backends.values())),
            "serial": self.table.serial(),
            "keys": None if keys is None else len(keys),
            "configured": self.dispatcher is not None,
            # Which process this is: after a hand-over another one answers.
            "pid": os.getpid(),
            # The directory that this process runs from, and which text is its configuration.
            "environment": Path(sys.prefix).resolve().name,
            "configuration": self.config_file.digest,
            "configuration_problem": self.config_file.problem,
            "began": self.began.isoformat(timespec="seconds"),
            "backends": {
                name: {
                    "models": list(one.config.models),
                    # Told by its host's door; null where that says nothing.
                    "release": None if one.serves is None else one.serves.release,
                    "draining": one.draining,
                    "breaker": one.breaker.state(),
                    "outstanding": one.outstanding,
                }
                for name, one in backends.items()
            },
            "waiting": self.dispatcher.waiting() if self.dispatcher is not None else {},
        }

    # --- what is asked ---

    async def admit_key(self, scope: Scope) -> tuple[Key, Config, Dispatcher]:
        """Whose request this is, and what is in force. Raises Refusal (401, 503)."""
        keys, dispatcher = self.table.current(), self.dispatcher
        if keys is None or dispatcher is None:
            raise Refusal(
                503,
                "not_configured",
                "This service has no keys or no configuration yet. Try again after the seconds in "
                "Retry-After.",
                retry_after_seconds=5,
            )
        # With what the engines say themselves, where they do.
        config = dispatcher.config
        presented = bearer_key(scope["headers"])
        if config.auth is not None and (presented is None or not is_hosts_own(presented)):
            return await self._outside.key_of(config.auth, scope), config, dispatcher
        key = find_key(keys, presented, datetime.now(UTC)) if presented is not None else None
        if key is None:
            # The same answer for every reason: it tells a guesser nothing.
            raise invalid_key()
        return key, config, dispatcher

    def end_revoked(self) -> None:
        """End the answers of keys that are good no more, where the configuration says so."""
        keys, config = self.table.current(), self.config_file.current
        if keys is None or config is None or config.revoked_streams != "end" or config.auth:
            return
        now = datetime.now(UTC)
        for request in tuple(self.running):
            if request.key is not None and not still_good(keys, request.key, now):
                request.revoke()

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(self, scope, receive, send)
        try:
            status = await request.answer()
        except Refusal as refusal:
            status = refusal.status
            self.metrics.refusals.labels(refusal.code).inc()
            await asgi.refuse(send, refusal, request.headers)
        except ClientGoneError:
            status = CLIENT_GONE
            self.metrics.aborts.labels("client_gone").inc()
        except Exception as error:
            status = 500
            log.error("%s: %s", scope["path"], failure(error))
            if request.exchange is None or request.exchange.status is None:
                await asgi.refuse(
                    send,
                    Refusal(500, "internal_error", "This service failed; its log has the place."),
                    request.headers,
                )
        self.metrics.requests.labels(scope["path"], request.model, request.tier, status).inc()


def failure(error: BaseException) -> str:
    """An unexpected error for the log: its kind and place. Its text may have a prompt in it."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}"
    return f"{type(error).__name__} at {where}"


def _models(key: Key, config: Config) -> dict[str, Any]:
    lengths = {
        name: backend.max_model_len
        for backend in config.backends
        for name in (*backend.models, *(alias for alias, _ in backend.aliases))
    }
    data = [
        {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "organization",
            "max_model_len": lengths[name],
        }
        for name in sorted(config.models)
        if admission.may_use(key, name, config)
    ]
    return {"object": "list", "data": data}
