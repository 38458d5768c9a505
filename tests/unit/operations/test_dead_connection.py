"""A host without power closes nothing: the kernel ends the connection that nobody acknowledges."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

from pyinfra_deploy.operations import dead_connection


def host_with(sock: Any) -> Any:
    transport = SimpleNamespace(sock=sock)
    return SimpleNamespace(
        connector=SimpleNamespace(client=SimpleNamespace(get_transport=lambda: transport))
    )


def test_the_kernel_asks_and_does_not_wait_for_a_quarter_of_an_hour() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as ours:
        dead_connection.be_noticed(host_with(ours))
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        wait = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        asked = [
            ours.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        ]
    assert wait == 30_000
    assert asked == [15, 5, 6]


def test_a_host_without_a_socket_of_ours_is_left_alone() -> None:
    dead_connection.be_noticed(host_with(None))
    dead_connection.be_noticed(host_with(object()))  # a jump host's channel
    local: Any = SimpleNamespace(connector=object())
    dead_connection.be_noticed(local)
