"""A stub engine for measuring: cheap, and each chunk says when it was sent.

python -m tests.fakes.paced_engine SOCKET PORT RATE CHUNKS [FIRST]. Listens on the Unix socket and
on 127.0.0.1:PORT. Answers GET, /tokenize and what asks for no stream at once, and everything else
with a stream of CHUNKS events, RATE a second; the first comes after FIRST seconds (0). The text of
each event is "@" and the clock of this machine (CLOCK_MONOTONIC, seconds, 20 characters): a proxy
that writes events anew keeps the text.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import cast

TOKENIZED = b'{"count":250,"max_model_len":16384,"tokens":[' + b",".join([b"12345"] * 250) + b"]}"
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","created":0,"owned_by":"x"}]}'
WHOLE = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"all at once"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}'
)
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"@%020.6f"},"finish_reason":null}]}\n\n'
)
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class PacedEngine(asyncio.Protocol):
    def __init__(self, rate: float, chunks: int, first_seconds: float) -> None:
        self.pause = 1 / rate
        self.chunks = chunks
        self.first_seconds = first_seconds
        self.received = b""
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator:
            return
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if len(body) < length:
            return
        self.received = body[length:]
        if head.startswith(b"POST /tokenize "):
            self.answer(TOKENIZED)
            return
        if head.startswith(b"GET "):
            # /health and /v1/models, which other gateways ask for.
            self.answer(MODELS)
            return
        if b'"stream":true' not in body and b'"stream": true' not in body:
            self.answer(WHOLE)
            return
        if self.first_seconds:
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(self.first_seconds, self.begin)
        else:
            self.begin()

    def begin(self) -> None:
        self.transport.write(_HEAD)
        self.send(0)

    def answer(self, document: bytes) -> None:
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(document), document)
        )

    def send(self, number: int) -> None:
        if number == self.chunks:
            self.transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            self.timer = None
            return
        event = EVENT % time.monotonic()
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.timer = asyncio.get_running_loop().call_later(self.pause, self.send, number + 1)


async def serve(path: str, port: int, *how: float) -> None:
    def connected() -> PacedEngine:
        return PacedEngine(how[0], int(how[1]), how[2] if len(how) > 2 else 0.0)

    loop = asyncio.get_running_loop()
    near = await loop.create_unix_server(connected, path, backlog=1024)
    far = await loop.create_server(connected, "127.0.0.1", port, backlog=1024)
    await asyncio.gather(near.serve_forever(), far.serve_forever())


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:])))
