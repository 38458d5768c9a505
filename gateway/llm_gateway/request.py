"""One POST to the API: key, limits, body, count, and then its exchange with an engine."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

from . import admission, asgi
from .asgi import ClientGoneError
from .bodies import Held
from .counting import count_prompt, surely_fits
from .exchange import Exchange
from .prompt_count import charged_tokens, check_room
from .refusals import Refusal, invalid_key, no_such_address, wrong_method

if TYPE_CHECKING:
    from .asgi import Headers, Receive, Scope, Send
    from .keys import Key
    from .service import Service

# To the engine: what traces a request. Never the client's key or cookies, nor headers that steer
# vLLM (X-data-parallel-rank).
_TRACE_HEADERS = (b"x-request-id", b"traceparent", b"tracestate")
_TRACE_VALUE = re.compile(rb"[!-~]{1,512}")


class Request:
    """One POST from its headers to its answer's end."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self.service, self.scope, self.receive, self.send = service, scope, receive, send
        self.headers: Headers = []
        self.model = ""
        self.tier = ""
        self.key: Key | None = None
        self.exchange: Exchange | None = None
        self._held = Held(service.bodies)
        self._task: asyncio.Task[object] | None = None
        self._revoked = False

    def revoke(self) -> None:
        """End the answer: its key is good no more."""
        if self._task is not None and not self._revoked:
            self._revoked = True
            self._task.cancel()

    async def answer(self) -> int:
        """The status that was sent. Raises Refusal while none was, and ClientGoneError."""
        try:
            return await self._answer()
        finally:
            self._held.release()

    async def _answer(self) -> int:
        service, path = self.service, self.scope["path"]
        if self.scope["method"] != "POST":
            raise wrong_method("POST")
        key, config, dispatcher = await service.admit_key(self.scope)
        self.key = key
        self.headers.append((b"x-key-id", key.id.encode()))
        self.tier = config.tier(key.tier)
        if path == admission.TOKENIZE and not config.admission.expose_tokenize:
            raise no_such_address()
        service.limits.request(key)
        admission.check_type(asgi.header(self.scope, b"content-type"))
        limits = config.admission
        body = await asgi.read_body(
            self.scope, self.receive, limits.max_body_bytes, limits.body_seconds, self._held
        )
        size_bytes = len(body)
        async with service.bodies.turn(size_bytes):
            started = time.monotonic()
            asked = admission.read_request(path, body, key, config)
        del body
        self.model = asked.model
        self.exchange = Exchange(
            config=config,
            dispatcher=dispatcher,
            limits=service.limits,
            metrics=service.metrics,
            send=self.send,
            asked=asked,
            key=key,
            tier=self.tier,
            request_headers=_engine_headers(self.scope),
            answer_headers=self.headers,
            started=started,
            body_bytes=size_bytes,
            held=self._held,
        )
        await self._while_client_listens(self.exchange)
        return self.exchange.status or 500

    async def _while_client_listens(self, exchange: Exchange) -> None:
        """Run the exchange; end it in the moment in which the client closes its connection."""
        task = asyncio.current_task()
        assert task is not None
        gone = asyncio.ensure_future(asgi.wait_until_gone(self.receive))

        def stop(watcher: asyncio.Future[None]) -> None:
            if not watcher.cancelled():
                task.cancel()

        gone.add_done_callback(stop)
        self._task = task
        self.service.running.add(self)
        try:
            await self._count(exchange)
            await exchange.run()
        except asyncio.CancelledError:
            if self._revoked:
                task.uncancel()
                await self._end_revoked(exchange)
                return
            if not exchange.whole and gone.done() and not gone.cancelled():
                task.uncancel()
                raise ClientGoneError from None
            if exchange.status is None:
                raise _stopping() from None
            await exchange.tell_in_stream("stopping")
            self.service.metrics.aborts.labels("stopping").inc()
        finally:
            self.service.running.discard(self)
            gone.remove_done_callback(stop)
            gone.cancel()
            exchange.stop_counting()

    async def _end_revoked(self, exchange: Exchange) -> None:
        self.service.metrics.aborts.labels("key_revoked").inc()
        if exchange.status is None:
            raise invalid_key()
        await exchange.tell_in_stream("key_revoked")

    async def _count(self, exchange: Exchange) -> None:
        """Count the prompt and charge it, or begin to. Raises Refusal (413, 429)."""
        if exchange.asked.path == admission.TOKENIZE:
            return
        counting = count_prompt(exchange.asked, exchange.dispatcher, exchange.config)
        limited = exchange.key.tokens_per_minute is not None
        if not limited and surely_fits(exchange.asked, exchange.body_bytes, exchange.dispatcher):
            exchange.counting = asyncio.ensure_future(counting)
            return
        began = time.monotonic()
        count = await counting
        exchange.waited_seconds += time.monotonic() - began
        exchange.take_count(count)
        if count is not None and count.limit is not None:
            check_room(exchange.asked, count.tokens, count.limit)
        if limited:
            charged = charged_tokens(exchange.asked, count, exchange.body_bytes)
            if count is None and exchange.key.tokens_per_minute is not None:
                # An estimate is no ground for saying that the prompt will never fit.
                charged = min(charged, exchange.key.tokens_per_minute)
            self.service.limits.prompt(exchange.key, charged)
            exchange.charged_tokens = charged


def _engine_headers(scope: Scope) -> dict[str, str]:
    found = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",
    }
    for name in _TRACE_HEADERS:
        value = asgi.header(scope, name)
        if value is not None and _TRACE_VALUE.fullmatch(value):
            found[name.decode()] = value.decode()
    return found


def _stopping() -> Refusal:
    return Refusal(
        503,
        "stopping",
        "This service is being stopped. Try again after the seconds in Retry-After.",
        retry_after_seconds=1,
    )
