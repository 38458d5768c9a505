"""An engine as the gateway sees vLLM: streams at a set rate, and fails in every way on demand.

It runs in a test's own event loop (`async with StubEngine(path) as engine`), where the test sees
what arrived and what was aborted.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

CHUNK_TEXT = "token "


class StubEngine:
    """Knobs may be turned while it runs.

    rate: chunks a second of a stream. chunks: of a stream. mode:
    normal, hang (reads, never answers), drop (closes before any byte), drop_after_headers,
    die_in_stream (closes after 2 chunks), error (answers `status`), error_event (200, then an
    error as the first event).
    """

    def __init__(self, path: Path, *, rate: float = 200.0, chunks: int = 5) -> None:
        self.path = path
        self.rate = rate
        self.chunks = chunks
        self.mode = "normal"
        self.status = 500
        self.tokenize_mode = "normal"
        self.token_count: int | None = None
        self.max_model_len = 4096
        self.kv_cache = 0.375
        self.draining = False
        # As the door of an engine's host: /ready names what it serves, and while it drains new
        # requests are sent back.
        self.serves: dict[str, Any] | None = None
        self.sends_back = False
        self.sent_back = 0
        self.first_byte_seconds = 0.0
        self.padding_bytes = 0  # of a comment before each event
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.active = 0
        self.most_active = 0
        self.completed = 0
        self.aborted = asyncio.Event()
        self.aborts = 0
        self.arrived = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._connected, str(self.path))

    async def listen_tls(self, context: ssl.SSLContext, port: int = 0) -> int:
        """Listen on loopback with TLS, instead of where it listened before; the port."""
        assert self._server is not None
        self._server.close()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port, ssl=context)
        return int(self._server.sockets[0].getsockname()[1])

    async def kill(self) -> None:
        """As kill -9 does: nobody listens, all connections end in the middle."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def asked(self, path: str) -> list[Any]:
        """The documents that arrived at a path, probes left out."""
        return [body for where, _, body in self.requests if where == path and not is_probe(body)]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        path = head[0].split(" ")[1]
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        body = json.loads(raw) if raw else None
        self.requests.append((path, headers, body))
        if path == "/metrics":
            text = f'# x\nvllm:kv_cache_usage_perc{{engine="0"}} {self.kv_cache}\n'
            return await self._answer(writer, 200, text.encode(), "text/plain")
        if path == "/ready":
            document: dict[str, Any] = {"ready": not self.draining, "draining": self.draining}
            if self.serves is not None and not self.draining:
                document["serves"] = self.serves
            return await self._json(writer, 503 if self.draining else 200, document)
        if path == "/health":
            return await self._answer(writer, 200, b"", "text/plain")
        if body is None:
            return await self._json(writer, 404, {"detail": "Not Found"})
        if path == "/tokenize":
            return await self._tokenize(writer, body)
        if self.sends_back and self.draining:
            self.sent_back += 1
            refusal = b'{"error":{"message":"drained","code":"engine_draining"}}'
            return await self._answer(writer, 503, refusal, "application/json")
        return await self._generate(reader, writer, path, body)

    async def _tokenize(self, writer: asyncio.StreamWriter, body: Any) -> bool:
        if self.tokenize_mode == "hang":
            await asyncio.sleep(3600)
        if self.tokenize_mode == "error":
            return await self._json(writer, 500, {"error": "no"})
        if self.tokenize_mode == "nonsense":
            return await self._answer(writer, 200, b"<html>", "text/html")
        count = self.token_count
        if count is None:
            count = len(str(body.get("prompt", body.get("messages"))).split())
        document = {"count": count, "max_model_len": self.max_model_len, "tokens": [1] * count}
        return await self._json(writer, 200, document)

    async def _generate(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: Any
    ) -> bool:
        if not is_probe(body):
            self.arrived.set()
        if self.mode == "hang":
            await self._until_gone(reader, 3600)
            return False
        if self.mode == "drop":
            return False
        if self.mode == "error":
            return await self._json(writer, self.status, {"error": {"message": "broken"}})
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            if body.get("stream"):
                return await self._stream(reader, writer, path, body)
            return await self._whole(reader, writer, path, body)
        finally:
            self.active -= 1

    async def _whole(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: Any
    ) -> bool:
        asked = body.get("max_tokens")
        tokens = min(self.chunks, asked) if isinstance(asked, int) and asked else self.chunks
        if not is_probe(body) and await self._until_gone(reader, tokens / self.rate):
            return False
        self.completed += not is_probe(body)
        text = CHUNK_TEXT * tokens
        choice = {"index": 0, "text": text, "message": {"role": "assistant", "content": text}}
        document = {"id": "x", "choices": [choice], "usage": usage(7, tokens)}
        return await self._json(writer, 200, document)

    async def _stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: Any
    ) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        if self.mode == "drop_after_headers":
            return False
        if self.mode == "error_event":
            _chunk(writer, b'data: {"error": {"message": "EngineCore died"}}\n\n')
            _chunk(writer, b"")
            return True
        if self.first_byte_seconds and await self._until_gone(reader, self.first_byte_seconds):
            return False
        for number in range(self.chunks):
            if self.mode == "die_in_stream" and number == 2:
                return False
            if self.padding_bytes:
                _chunk(writer, b": " + b"x" * self.padding_bytes + b"\n\n")
            _chunk(writer, event(number))
            if await self._until_gone(reader, 1 / self.rate):
                return False
        if (body.get("stream_options") or {}).get("include_usage"):
            document = {"id": "x", "choices": [], "usage": usage(7, self.chunks)}
            _chunk(writer, f"data: {json.dumps(document, separators=(',', ':'))}\n\n".encode())
        _chunk(writer, b"data: [DONE]\n\n")
        _chunk(writer, b"")
        await writer.drain()
        self.completed += 1
        return True

    async def _until_gone(self, reader: asyncio.StreamReader, seconds: float) -> bool:
        """Wait; True as soon as the other side closed. No client of ours sends ahead."""
        if seconds < 0.02 and not reader.at_eof():
            await asyncio.sleep(seconds)
            gone = reader.at_eof()
        else:
            try:
                async with asyncio.timeout(seconds):
                    gone = not await reader.read(1)
            except TimeoutError:
                return False
        if gone:
            self.aborts += 1
            self.aborted.set()
        return gone

    async def _json(self, writer: asyncio.StreamWriter, status: int, document: Any) -> bool:
        text = json.dumps(document, separators=(",", ":")).encode()
        return await self._answer(writer, status, text, "application/json")

    async def _answer(
        self, writer: asyncio.StreamWriter, status: int, body: bytes, kind: str
    ) -> bool:
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        return True


def is_probe(body: Any) -> bool:
    return isinstance(body, dict) and body.get("prompt") == "1" and body.get("max_tokens") == 1


def event(number: int) -> bytes:
    """One event of a stream, as the stub sends it."""
    delta = {"content": CHUNK_TEXT}
    document = {"id": "x", "choices": [{"index": 0, "delta": delta, "n": number}]}
    return f"data: {json.dumps(document)}\n\n".encode()


def usage(prompt: int, generated: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + generated,
        "completion_tokens": generated,
    }


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
