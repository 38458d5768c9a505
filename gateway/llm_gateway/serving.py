"""Serving an application on a listening socket until a signal says to end.

SIGTERM   stop accepting, close idle connections, let answers finish up to the limit, end
SIGUSR1   hand over: another process accepts on the same socket by now. Answers finish without a
          limit, until SIGTERM comes after all. Idle connections stay open until the other side
          closes them, and what still comes over them is answered, with Connection: close. A proxy
          that sends into a connection in the moment in which it is closed would have to fail that
          request.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
import time
from typing import TYPE_CHECKING

import uvicorn

from .listening import BACKLOG

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from types import FrameType

    from .asgi import Application

# Longer than Nginx keeps an idle connection to us (30 s), so that Nginx is the one to close and
# never sends a request into a connection that is just being closed.
KEEPALIVE_SECONDS = 75
HAND_OVER_IDLE_SECONDS = 40.0


class Server(uvicorn.Server):
    """uvicorn's server with a hand-over. stopping: called at each signal that ends it, gives the
    limit in seconds. parent: the process whose end is as SIGTERM."""

    def __init__(
        self,
        application: Application,
        *,
        stopping: Callable[[], float],
        ready_fd: int | None = None,
        parent: int | None = None,
    ) -> None:
        config = uvicorn.Config(
            application,
            interface="asgi3",
            http="httptools",
            loop="uvloop",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEPALIVE_SECONDS,
            timeout_graceful_shutdown=5,
            backlog=BACKLOG,
        )
        super().__init__(config)
        self._stopping = stopping
        self._ready_fd = ready_fd
        self._hand_over = False
        self._terminated = False
        self._parent = parent

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What was imported stays: it need not be looked through at every collection.
        gc.collect()
        gc.freeze()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._begin_hand_over)
        if self._ready_fd is not None:
            os.write(self._ready_fd, b"1")
            os.close(self._ready_fd)

    def _begin_hand_over(self) -> None:
        self._hand_over = True
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        return self._is_orphan() or await super().on_tick(counter)

    def _is_orphan(self) -> bool:
        """A supervisor that was killed cannot tell its worker to end; nobody else would."""
        orphan = self._parent is not None and os.getppid() != self._parent
        self._terminated = self._terminated or orphan
        return orphan

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._terminated = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        limit_seconds = self._stopping()
        if self._hand_over:
            await self._end_slowly(sockets)
            # Of now: a configuration may have come since, and the limit counts from SIGTERM.
            limit_seconds = self._stopping()
        self.config.timeout_graceful_shutdown = max(1, int(limit_seconds))
        await super().shutdown(sockets)

    async def _end_slowly(self, sockets: list[socket.socket] | None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        # Taken into every answer that begins from now on; uvicorn closes after such a one.
        self.server_state.default_headers = [
            *self.server_state.default_headers,
            (b"connection", b"close"),
        ]
        await self._until_left(HAND_OVER_IDLE_SECONDS)
        # Those that nobody has closed and nothing comes over; of the others each after its answer.
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._until_left(math.inf)

    async def _until_left(self, seconds: float) -> None:
        """Until no connection is left, or SIGTERM came."""
        deadline = time.monotonic() + seconds
        while self.server_state.connections and not (self._is_orphan() or self._terminated):
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(0.1)
