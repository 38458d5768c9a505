"""SSH that notices when a host is gone.

A host without power or cable closes nothing, and paramiko waits an hour for the answer to its next
command (Transport.open_session), the kernel a quarter of an hour for a packet's acknowledgement
(tcp(7): tcp_retries2). The kernel is told to ask, and not to wait that long.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyinfra.api import Host

IDLE_SECONDS = 15
BETWEEN_SECONDS = 5
# A shorter outage, of a switch that restarts, breaks no connection.
SILENT_SECONDS = 30


def be_noticed(host: Host) -> None:
    """Have the kernel end this host's connection after SILENT_SECONDS without an acknowledgement.
    Nothing for a host that is not reached by a socket of ours (@local, a jump host). OSError where
    paramiko has closed it: the host came back and knew nothing of the connection."""
    client = getattr(host.connector, "client", None)
    transport = client.get_transport() if client is not None else None
    connection = getattr(transport, "sock", None)
    if not isinstance(connection, socket.socket):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, IDLE_SECONDS),
        (socket.TCP_KEEPINTVL, BETWEEN_SECONDS),
        (socket.TCP_KEEPCNT, SILENT_SECONDS // BETWEEN_SECONDS),
        (socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
