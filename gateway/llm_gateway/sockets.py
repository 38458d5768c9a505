"""Connections to engines of other hosts that notice when the other end is gone.

A host that loses its power or its cable closes nothing: whoever waits for its answer waits for
gateway.read_timeout_seconds. The kernel asks it instead (tcp(7): TCP_KEEPIDLE, TCP_USER_TIMEOUT),
whatever the engine does: a host that lives answers, however long its engine is silent.
"""

from __future__ import annotations

import socket
from typing import Any

IDLE_SECONDS = 5
BETWEEN_SECONDS = 3
# What was sent, data or a question, is acknowledged within this time, or the connection is dead.
SILENT_SECONDS = 12


def to_another_host(found: tuple[int, int, int, str, Any]) -> socket.socket:
    """A socket for one of getaddrinfo's entries (aiohttp's socket_factory)."""
    family, kind, protocol, _, _ = found
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, IDLE_SECONDS),
        (socket.TCP_KEEPINTVL, BETWEEN_SECONDS),
        (socket.TCP_KEEPCNT, SILENT_SECONDS // BETWEEN_SECONDS),
        (socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000),
    ):
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
