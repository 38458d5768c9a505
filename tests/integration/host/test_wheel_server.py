"""The serve job: for the hosts it was told of, and only as long as somebody asks."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fleet_host import wheel_server
from fleet_host.errors import HostError, SpecError
from fleet_host.status import Progress

from tests.fakes.wheel_index import Index, write_wheels


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Serving:
    directory: Path
    port: int = field(default_factory=free_port)
    result: dict[str, Any] = field(default_factory=dict)
    thread: threading.Thread | None = None

    def start(self, *allowed: str, idle_seconds: float = 30.0) -> None:
        spec = {
            "directory": str(self.directory),
            "address": "127.0.0.1",
            "port": self.port,
            "allowed": list(allowed),
            "idle_seconds": idle_seconds,
        }
        self.thread = threading.Thread(
            target=lambda: self.result.update(wheel_server.run(spec, Progress(None))), daemon=True
        )
        self.thread.start()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
            content: bytes = response.read()
        return content

    def ended(self) -> dict[str, Any]:
        assert self.thread is not None
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.result


@pytest.fixture
def serving(index: Index, tmp_path: Path) -> Serving:
    index.add("alpha", size_bytes=3 << 20)
    directory = write_wheels(index, tmp_path / "wheels")
    (directory / ".incoming").mkdir()
    (directory / ".incoming" / "part").write_text("half")
    (tmp_path / "secret").write_text("secret")
    (directory / "out.whl").symlink_to(tmp_path / "secret")
    return Serving(directory)


def test_serves_wheels_and_ends_when_nobody_asks(serving: Serving, index: Index) -> None:
    serving.start("127.0.0.1", idle_seconds=1.0)
    (file, content) = next(iter(index.files.items()))
    assert serving.get(f"/{file}") == content
    assert b"alpha" in serving.get("/index.html")
    assert b"alpha" in serving.get("/simple/alpha/")
    result = serving.ended()
    assert result["served_bytes"] > len(content)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", serving.port), 1)


@pytest.mark.parametrize("page", ["index.html", ""])
def test_wheels_that_come_later_are_seen_by_an_installer_with_a_cache(
    serving: Serving, index: Index, tmp_path: Path, page: str
) -> None:
    """One run gathers wheels more than once, and uv keeps pages that do not forbid it."""
    serving.start("127.0.0.1")
    for name in ("alpha", "beta"):
        if name not in index.lock():
            index.add(name)
            write_wheels(index, serving.directory)
        subprocess.run(
            [Path(sys.executable).with_name("uv"), "pip", "install", "--no-config", "--no-index",
             "--python", sys.executable, "--find-links", f"http://127.0.0.1:{serving.port}/{page}",
             "--target", tmp_path / "target", "--cache-dir", tmp_path / "cache", name],
            check=True,
        )  # fmt: skip
        assert (tmp_path / "target" / name).is_dir()


@pytest.mark.parametrize(
    "path", ["/.incoming/part", "/../secret", "/out.whl", "/simple/../../secret", "/.incoming/"]
)
def test_nothing_hidden_and_nothing_outside(serving: Serving, path: str) -> None:
    serving.start("127.0.0.1", idle_seconds=2.0)
    client = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=10)
    client.request("GET", path)
    response = client.getresponse()
    assert response.status == 404
    assert b"secret" not in response.read()
    client.close()


def test_nobody_else_is_answered(serving: Serving) -> None:
    serving.start("192.0.2.1", idle_seconds=2.0)
    with pytest.raises((OSError, http.client.HTTPException)):
        serving.get("/index.html")
    assert serving.ended()["refused"] == ["127.0.0.1"]


def test_only_get_and_head(serving: Serving) -> None:
    serving.start("127.0.0.1", idle_seconds=2.0)
    client = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=10)
    client.request("PUT", "/index.html", b"x")
    assert client.getresponse().status == 501
    client.close()


def test_an_address_of_another_host_is_said(serving: Serving) -> None:
    spec = {"directory": str(serving.directory), "address": "192.0.2.1", "port": 8471}
    with pytest.raises(HostError, match="cannot be served at") as caught:
        wheel_server.run({**spec, "allowed": [], "idle_seconds": 1}, Progress(None))
    assert "runtime.wheelhouse.url" in caught.value.fix


def test_without_wheels_it_does_not_begin(tmp_path: Path) -> None:
    spec = {"directory": str(tmp_path), "address": "127.0.0.1", "port": 8471, "allowed": []}
    with pytest.raises(HostError, match="no wheels to serve"):
        wheel_server.run({**spec, "idle_seconds": 1}, Progress(None))


def test_a_name_is_no_address() -> None:
    with pytest.raises(SpecError, match="address is wrong"):
        wheel_server.addresses(["gpu01"])
