"""Miniforge from an installer that the operator names: verified, then run, whole or not at all."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import environment, environment_spec
from fleet_host.errors import HostError, SpecError
from fleet_host.status import Progress

from tests.fakes.killed_build import build_killed_at
from tests.standin import conda_channel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.conda_world import CondaWorld

KILLS = int(os.environ.get("FLEET_KILLS", "2"))


class Miniforge:
    """An installer on the host and the job that installs it."""

    def __init__(self, root: Path, pause: str = "") -> None:
        self.root = root
        self.file = root / "Miniforge3-Linux-x86_64.sh"
        self.file.write_text(conda_channel.installer_text(pause))
        self.sha256 = hashlib.sha256(self.file.read_bytes()).hexdigest()
        self.path = root / "llm" / "tools" / f"miniforge-{self.sha256[:12]}"

    def spec(self, **changes: Any) -> dict[str, Any]:
        installer = {"path": str(self.file), "url": None, "sha256": self.sha256, **changes}
        return {"path": str(self.path), "miniforge": installer, "bytes_needed": 1000}

    def build(self, **changes: Any) -> dict[str, Any]:
        return environment.run(self.spec(**changes), Progress(None))

    def refused(self, **changes: Any) -> HostError:
        with pytest.raises(HostError) as caught:
            self.build(**changes)
        assert not (self.path / environment_spec.COMPLETE).exists()
        return caught.value


@pytest.fixture
def miniforge(conda_world: CondaWorld) -> Miniforge:
    return Miniforge(conda_world.root)


@pytest.fixture
def address(miniforge: Miniforge) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(miniforge.root))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/{miniforge.file.name}"
    server.shutdown()
    server.server_close()


def test_it_is_installed_and_makes_an_environment(
    miniforge: Miniforge, conda_world: CondaWorld
) -> None:
    answer = miniforge.build()
    record = json.loads((miniforge.path / environment_spec.COMPLETE).read_text())
    assert answer["state"] == "built"
    assert record["digest"] == miniforge.sha256
    assert record["versions"] == {"conda": "26.7.1"}
    assert record["size_bytes"] > 0
    spec = conda_world.spec()
    spec["conda"]["program"] = str(miniforge.path / "bin" / "conda")
    assert environment.run(spec, Progress(None))["state"] == "built"
    assert conda_world.works()


def test_a_second_run_changes_nothing(miniforge: Miniforge) -> None:
    miniforge.build()
    miniforge.file.unlink()  # it has done its work
    assert miniforge.build()["state"] == "present"


def test_it_is_downloaded(miniforge: Miniforge, address: str) -> None:
    assert miniforge.build(path=None, url=address)["state"] == "built"


def test_another_file_than_meant_is_not_run(miniforge: Miniforge) -> None:
    marker = miniforge.root / "ran"
    miniforge.file.write_text(f"#!/bin/sh\ntouch {marker}\n")
    error = miniforge.refused()
    assert "It was not run" in error.why
    assert miniforge.sha256 in error.why
    assert not marker.exists()
    assert not miniforge.path.exists()


def test_an_installer_that_is_not_there_is_told(miniforge: Miniforge, address: str) -> None:
    miniforge.file.unlink()
    assert str(miniforge.file) in miniforge.refused().what
    assert "404" in miniforge.refused(path=None, url=address).why


def test_an_installer_that_fails_is_told_in_its_words(miniforge: Miniforge) -> None:
    failing = Miniforge(miniforge.root, pause="echo 'ERROR: cannot execute' >&2; exit 3")
    error = failing.refused()
    assert "exit code 3" in error.why
    assert "ERROR: cannot execute" in error.detail


@pytest.mark.parametrize("number", range(KILLS))
def test_kill_in_the_middle_of_the_installer_and_run_again(
    miniforge: Miniforge, number: int
) -> None:
    marker = miniforge.root / f"installer-{number}"
    paused = Miniforge(
        miniforge.root, pause=f"[ -e {marker} ] || {{ echo $$ >{marker}; sleep 600; }}"
    )
    child = os.fork()
    if child == 0:
        try:
            paused.build()
        finally:
            os._exit(1)
    deadline = time.monotonic() + 60
    while not (marker.exists() and marker.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.killpg(int(marker.read_text()), signal.SIGKILL)
    assert (paused.path / "bin").is_dir()  # half of it is there
    assert environment.read_record(paused.path) is None
    assert paused.build()["state"] == "built"


@pytest.mark.parametrize("phase", ["copy", "install", "finish", "sync"])
def test_a_kill_in_any_phase_leaves_nothing_that_counts(miniforge: Miniforge, phase: str) -> None:
    build_killed_at(phase, miniforge.spec())
    assert environment.read_record(miniforge.path) is None
    assert miniforge.build()["state"] == "built"


@pytest.mark.parametrize("path", ["/srv/other/miniforge", "{root}/llm/runtimes/x", "{root}/llm"])
def test_it_is_installed_below_tools_only(miniforge: Miniforge, path: str) -> None:
    """Whatever is there without a record would be removed."""
    spec = {**miniforge.spec(), "path": path.format(root=miniforge.root)}
    with pytest.raises(SpecError):
        environment.run(spec, Progress(None))
