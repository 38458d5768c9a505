"""Connections to other hosts: dead ones are noticed by the kernel."""

from __future__ import annotations

import socket

from llm_gateway import sockets


def test_a_host_that_is_gone_is_noticed_in_seconds() -> None:
    made = sockets.to_another_host(
        (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
    )
    with made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        asked = {
            option: made.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        }
        # A question at this moment at the latest, and the connection's end at that one.
        assert asked[socket.TCP_KEEPIDLE] <= 5
        assert asked[socket.TCP_KEEPINTVL] * asked[socket.TCP_KEEPCNT] <= 12
        assert 0 < made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 12_000
