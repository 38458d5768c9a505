"""What `verify` tells streaming from buffering by, seen through a real Nginx that does either."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fleet_host.https_client import Client

from tests.integration.nginx.running import CHUNKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.nginx.running import Gateway


@pytest.mark.parametrize(
    ("replacements", "pieces"),
    [({}, CHUNKS + 1), ({"proxy_buffering off;": "proxy_buffering on;"}, 1)],
    ids=["streaming", "buffering"],
)
def test_pieces_of_a_stream(
    start_gateway: Callable[..., Gateway],
    authorized: dict[str, str],
    replacements: dict[str, str],
    pieces: int,
) -> None:
    gateway = start_gateway(replacements)
    certificate = (gateway.directory / "tls.crt").read_text()
    client = Client("llm.example.com", gateway.https_port, certificate)
    reply = client.request("POST", "/v1/chat/completions", {"stream": True}, authorized)
    events = [line for line in reply.lines if line.text.startswith("data:")]
    assert len(events) == CHUNKS + 1
    assert len({line.read for line in events}) == pieces
