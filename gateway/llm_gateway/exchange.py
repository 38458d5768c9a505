"""One admitted request: an engine is found, its answer is passed on as it comes.

Another engine is tried only while nothing of an answer went to the client: any number of times when
the request was not begun, once when an engine that may have begun it broke off or answered that it
could not. Not more often: a request that kills engines is not to be carried to all of them. What an
engine's host sends back because it drains was not begun, and is no failure of anybody.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp

from .admission import written
from .dispatch import Wish
from .prompt_count import BYTES_PER_TOKEN
from .refusals import Refusal
from .routing import conversation_prefix, cost
from .upstream import (
    Listening,
    LostError,
    NotBegunError,
    Opened,
    SilentError,
    UpstreamError,
    is_stream,
    open_answer,
    passed_headers,
)
from .usage import UsageReader, UsageWriter, extended_document, extended_event

if TYPE_CHECKING:
    from .admission import Asked
    from .asgi import Headers, Send
    from .backend import Backend
    from .bodies import Held
    from .config import Config
    from .dispatch import Dispatcher
    from .keys import Key
    from .limits import KeyLimits
    from .metrics import Metrics
    from .prompt_count import Count

KV_HEADER = b"x-kv-cache-usage-percent"
COUNT_HEADER = b"x-prompt-token-count"
_ENDS = {
    "": "The answer ends here: the engine or this service stopped in the middle.",
    "key_revoked": "The answer ends here: the API key that asked for it is no longer valid.",
}
# What the final usage may wait for the engine's /metrics.
_KV_WAIT_SECONDS = 0.5


@dataclass
class Exchange:
    """State of one request on its way. started: monotonic, when its body was here in full.

    counting: the prompt's count, while it is asked for beside the request itself.
    """

    config: Config
    dispatcher: Dispatcher
    limits: KeyLimits
    metrics: Metrics
    send: Send
    asked: Asked
    key: Key
    tier: str
    request_headers: dict[str, str]
    answer_headers: Headers
    started: float
    body_bytes: int
    held: Held
    prompt_tokens: int | None = None
    charged_tokens: int = 0
    counting: asyncio.Future[Count | None] | None = None
    waited_seconds: float = 0.0
    status: int | None = None
    whole: bool = False
    failed_begun: int = 0
    _reader: UsageReader = field(default_factory=UsageReader)
    _stream_began: bool = False

    async def run(self) -> None:
        """Find an engine and pass its answer on. Raises Refusal while nothing was sent."""
        wish = Wish(
            model=self.asked.model,
            tier=self.tier,
            key_id=self.key.id,
            cost=cost(self.prompt_tokens or self.body_bytes // BYTES_PER_TOKEN),
            prefix=conversation_prefix(self.asked.document, self.config.prefix_bytes),
        )
        while not await self._attempt(wish):
            pass

    def take_count(self, count: Count | None) -> None:
        """Note the prompt's tokens, for the header, for limits and for metrics."""
        if count is None:
            self.metrics.uncounted.inc()
            return
        self.prompt_tokens = count.tokens
        self.answer_headers.append((COUNT_HEADER, str(count.tokens).encode()))

    def stop_counting(self) -> None:
        """The request is over: nobody waits for its count any more."""
        if self.counting is not None and not self.counting.cancel():
            self.counting.exception()  # seen; the request itself failed the same way

    async def _attempt(self, wish: Wish) -> bool:
        """True when an answer went to the client, False when another engine is to be tried."""
        began = time.monotonic()
        lease = await self.dispatcher.acquire(wish)
        queued = time.monotonic() - began
        self.metrics.queued.labels(self.tier).observe(queued)
        self.waited_seconds += queued
        backend = lease.backend
        if backend.config.served_name(self.asked.model) is None:
            # It came to serve something else in the moment in which the slot was given.
            lease.release()
            return False
        if self.config.kv_cache:
            backend.start_kv_refresh()
        opened = None
        try:
            body = self._body_for(backend)
            self.metrics.own.observe(time.monotonic() - self.started - self.waited_seconds)
            try:
                opened = await open_answer(
                    backend, self.asked.path, body, self.request_headers, self.config.timeouts
                )
            except UpstreamError as error:
                backend.breaker.failed()
                self._go_on_or_refuse(wish, backend, error)
                return False
            del body
            if backend.config.ready_path is not None and opened.sent_back:
                backend.refused_to_begin()
                wish.sent_back = True
                return False
            if opened.failed and self._another_may_do_it(wish, backend, opened):
                return False
            if opened.response.status < 500 and not opened.failed:
                backend.breaker.succeeded()
            await self._pass_on(backend, opened)
            return True
        finally:
            if opened is not None:
                # At the end of an answer its connection is already back in the pool; before it,
                # this ends the connection, and with it the engine's work on the request.
                opened.response.close()
            lease.release()

    def _body_for(self, backend: Backend) -> bytes:
        document = self.asked.document
        document["model"] = backend.config.served_name(self.asked.model)
        document.pop("priority", None)
        if backend.config.priority_scheduling:
            document["priority"] = self.config.tiers[self.tier].priority
        return written(document)

    def _go_on_or_refuse(self, wish: Wish, backend: Backend, error: UpstreamError) -> None:
        """Prepare the next attempt. Raises Refusal when there is none."""
        if isinstance(error, SilentError):
            raise Refusal(
                504,
                "engine_timeout",
                "The model gave no sign for "
                f"{self.config.timeouts.first_byte_seconds:g} seconds. Try a shorter prompt.",
            ) from error
        wish.avoid.add(backend.config.name)
        if isinstance(error, LostError):
            self.failed_begun += 1
            if self.failed_begun > 1:
                raise Refusal(
                    503,
                    "engine_lost",
                    "The engine broke off before it answered, twice. Try again after the seconds "
                    "in Retry-After.",
                    retry_after_seconds=5,
                ) from error
            if not self.dispatcher.reachable(wish):
                # The only engine: perhaps it just closed an idle connection. If it died, the next
                # attempt is refused and was not begun.
                wish.avoid.clear()
        elif isinstance(error, NotBegunError) and not self.dispatcher.reachable(wish):
            raise self.dispatcher.unavailable(self.dispatcher.pool(wish.model)) from error
        self.metrics.failovers.labels(backend.config.name, error.reason).inc()

    def _another_may_do_it(self, wish: Wish, backend: Backend, opened: Opened) -> bool:
        """Whether an answer of failure is kept from the client and another engine tried."""
        if opened.response.status in (502, 503):
            backend.breaker.failed()
        else:
            # One request can make an engine answer 500 at will: only a probe decides.
            backend.probe_wanted.set()
        wish.avoid.add(backend.config.name)
        if self.failed_begun or not self.dispatcher.reachable(wish):
            return False
        self.failed_begun += 1
        self.metrics.failovers.labels(backend.config.name, "answered_failure").inc()
        return True

    async def _pass_on(self, backend: Backend, opened: Opened) -> None:
        took = time.monotonic() - self.started
        self.metrics.first_byte.labels(self.asked.model, self.tier).observe(took)
        if self.counting is not None:
            # Asked for before the engine had the request: it is here, or nearly.
            self.take_count(await self.counting)
            self.counting = None
        # No other engine is tried from here on. A stream may go on for hours.
        self.asked.document = {}
        self.held.release()
        headers = [*passed_headers(opened), *self.answer_headers]
        if self.config.kv_cache and (percent := backend.known_kv_percent()) is not None:
            headers.append((KV_HEADER, f"{percent:g}".encode()))
        reader = self._reader
        try:
            if is_stream(opened):
                await self._stream(backend, opened, headers, reader)
            elif self.config.kv_cache and opened.response.status == 200:
                await self._document(backend, opened, headers, reader)
            else:
                length = opened.response.headers.get("Content-Length")
                if length is not None and length.isdigit():
                    headers.append((b"content-length", length.encode()))
                await self._start(opened, headers)
                await self._chunks(backend, opened, reader, None)
        finally:
            self._settle(opened, reader)

    async def _start(self, opened: Opened, headers: Headers) -> None:
        self.status = opened.response.status
        await self.send({"type": "http.response.start", "status": self.status, "headers": headers})

    async def _stream(
        self, backend: Backend, opened: Opened, headers: Headers, reader: UsageReader
    ) -> None:
        headers.append((b"x-accel-buffering", b"no"))
        await self._start(opened, headers)
        self._stream_began = True
        touched = self.config.kv_cache and self.asked.wants_usage
        await self._chunks(backend, opened, reader, UsageWriter() if touched else None)

    async def _chunks(
        self, backend: Backend, opened: Opened, reader: UsageReader, writer: UsageWriter | None
    ) -> None:
        """Pass chunks until the answer ends or breaks."""
        send = self.send
        gaps = self.metrics.gaps.labels(self.asked.model)
        chunk, last = opened.first, time.monotonic()
        try:
            async with Listening(
                opened.response, self.config.timeouts.between_bytes_seconds
            ) as engine:
                while chunk:
                    reader.feed(chunk)
                    if writer is None:
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    else:
                        await self._write(backend, writer, chunk)
                    chunk = await engine.chunk()
                    now = time.monotonic()
                    gaps.observe(now - last)
                    backend.alive_at = last = now
        except TimeoutError:
            await self._break_off("engine_silent", backend)
            return
        except (aiohttp.ClientError, OSError):
            await self._break_off("engine_lost", backend)
            return
        rest = writer.rest() if writer is not None else b""
        self.whole = True
        await send({"type": "http.response.body", "body": rest})

    async def _write(self, backend: Backend, writer: UsageWriter, chunk: bytes) -> None:
        while True:
            pieces, final = writer.feed(chunk)
            if final is not None:
                percent = await backend.kv_percent(_KV_WAIT_SECONDS)
                pieces.append(extended_event(final, percent))
            for piece in pieces:
                await self.send({"type": "http.response.body", "body": piece, "more_body": True})
            if final is None:
                return
            chunk = b""

    async def _document(
        self, backend: Backend, opened: Opened, headers: Headers, reader: UsageReader
    ) -> None:
        """A whole answer, extended by the cache's use."""
        parts = [opened.first]
        try:
            async with asyncio.timeout(self.config.timeouts.between_bytes_seconds):
                while parts[-1]:
                    parts.append(await opened.response.content.readany())
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            backend.breaker.failed()
            raise Refusal(
                503,
                "engine_lost",
                "The engine broke off in the middle of its answer. Try again after the seconds in "
                "Retry-After.",
                retry_after_seconds=5,
            ) from error
        body = b"".join(parts)
        reader.feed(body)
        body = extended_document(body, await backend.kv_percent(_KV_WAIT_SECONDS))
        headers.append((b"content-length", str(len(body)).encode()))
        self.whole = True
        await self._start(opened, headers)
        await self.send({"type": "http.response.body", "body": body})

    async def _break_off(self, reason: str, backend: Backend) -> None:
        """The engine broke off in mid-answer: say so where there is a way, never end it as whole.

        Without the final chunk of the transfer encoding the client sees that it is incomplete.
        """
        backend.breaker.failed()
        backend.probe_wanted.set()
        self.metrics.aborts.labels(reason).inc()
        await self.tell_in_stream(reason)

    async def tell_in_stream(self, code: str) -> None:
        """An event with an error, as OpenAI's clients read it, if the stream is between events."""
        if not self._stream_began or not self._reader.ended_an_event():
            return
        error = {
            "message": _ENDS.get(code, _ENDS[""]),
            "type": "server_error",
            "param": None,
            "code": code,
        }
        event = b"data: " + json.dumps({"error": error}).encode() + b"\n\n"
        await self.send({"type": "http.response.body", "body": event, "more_body": True})

    def _settle(self, opened: Opened, reader: UsageReader) -> None:
        """Charge what was generated, whole or not."""
        usage = reader.usage()
        prompt = self.prompt_tokens or 0
        if usage is not None:
            generated = usage.generated_tokens
            # Below zero what an estimate took too much.
            uncharged = usage.prompt_tokens - self.charged_tokens
            prompt = max(prompt, usage.prompt_tokens)
        else:
            # Without usage the events are counted: one a token, but for a few at both ends.
            ok = opened.response.status == 200
            generated, uncharged = reader.events if ok and is_stream(opened) else 0, 0
        self.limits.generated(self.key, generated + uncharged)
        tokens = self.metrics.tokens
        tokens.labels(self.asked.model, self.key.id, "prompt").inc(prompt)
        tokens.labels(self.asked.model, self.key.id, "generated").inc(generated)
