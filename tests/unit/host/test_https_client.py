"""Who did not answer: an operator has to look at the engine's log then, not at Nginx's."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from fleet_host.https_client import Client, UnansweredError

if TYPE_CHECKING:
    from pathlib import Path


def unanswered(client: Client) -> UnansweredError:
    with pytest.raises(UnansweredError) as caught:
        client.request("GET", "/v1/models", None, {})
    return caught.value


def test_an_engine_that_does_not_answer_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "http.sock")
    error = unanswered(Client("engine", 80, None, tls=False, socket_path=path))
    assert error.args[0].startswith(f"the engine itself, at {path}: GET /v1/models: FileNotFound")
    assert "llm-engine@" in error.look_at
    assert "nginx" not in f"{error} {error.look_at}".lower()


def test_nginx_is_named_where_it_was_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    error = unanswered(Client("llm.example.com", port, None, tls=False))
    assert "engine itself" not in str(error)
    assert "nginx" in error.look_at.lower()
