"""What a go-live says of an engine that is still loading."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from fleet_host import probe

if TYPE_CHECKING:
    from pathlib import Path


def test_no_socket_yet(tmp_path: Path) -> None:
    with pytest.raises(probe.NotReadyError, match=r"^nothing listens on http\.sock yet$"):
        probe.request(tmp_path / "http.sock", "GET", "/metrics")


def test_a_socket_that_nobody_listens_on(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        with pytest.raises(probe.NotReadyError, match=r"^nothing listens on http\.sock yet$"):
            probe.request(path, "POST", "/v1/completions", {})
