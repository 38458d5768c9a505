"""The hub as a real background process, its control socket, and stopping exactly that process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest

from lab.errors import LabError
from lab.hub import control, daemon
from lab.hub.__main__ import main
from lab.hub.faults import Fault
from lab.hub.places import control_socket, process_file
from tests.fakes.lab_hub import MODEL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def started(hub_directory: Path) -> Iterator[daemon.Process]:
    yield daemon.start(hub_directory, f"127.0.0.1:{free_port()}")
    daemon.stop(hub_directory)


def status_of(address: str) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = f"http://{address}/api/v1/models/{MODEL}/repo/files?Revision=master"
    try:
        with opener.open(url, timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_start_fault_count_and_stop(hub_directory: Path, started: daemon.Process) -> None:
    assert daemon.start(hub_directory, started.address) == started
    assert status_of(started.address) == 200
    control.set_faults(Fault("error", path="@listing"), hub=hub_directory)
    assert status_of(started.address) == 500
    assert control.counters(hub_directory)["applied"] == {"error": 1}
    control.clear_faults(hub_directory)
    control.reset_counters(hub_directory)
    assert (control.faults(hub_directory), status_of(started.address)) == ([], 200)
    assert control.counters(hub_directory)["requests"] == {"@listing": 1}
    assert control_socket(hub_directory).stat().st_mode & 0o777 == 0o600
    assert daemon.stop(hub_directory) is True
    assert daemon.running_process(hub_directory) is None
    assert not control_socket(hub_directory).exists()
    assert daemon.stop(hub_directory) is False


def test_a_second_address_is_refused(hub_directory: Path, started: daemon.Process) -> None:
    with pytest.raises(LabError, match=f"runs at {started.address}"):
        daemon.start(hub_directory, "127.0.0.1:1")


def test_starts_again_after_a_kill(hub_directory: Path, started: daemon.Process) -> None:
    os.kill(started.pid, signal.SIGKILL)
    os.waitpid(started.pid, 0)
    assert daemon.running_process(hub_directory) is None
    again = daemon.start(hub_directory, started.address)
    assert again.pid != started.pid
    assert status_of(again.address) == 200


def test_a_used_port_is_named(hub_directory: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LabError) as caught:
            daemon.start(hub_directory, address)
    assert f"cannot listen on {address}" in str(caught.value)
    assert "Address already in use" in str(caught.value)


def test_stop_leaves_a_process_that_got_the_same_pid(hub_directory: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"]) as other:
        record = {"pid": other.pid, "started_ticks": 1, "address": "127.0.0.1:1"}
        process_file(hub_directory).write_text(json.dumps(record))
        assert daemon.stop(hub_directory) is False
        time.sleep(0.05)
        assert other.poll() is None
        other.kill()


def test_without_a_hub_the_message_says_how_to_start_it(
    hub_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fault", "list", "--hub-dir", str(hub_directory)]) == 1
    assert "python -m lab.hub start" in capsys.readouterr().err
    assert main(["status", "--hub-dir", str(hub_directory)]) == 3
    assert f"{MODEL}: master" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["8090", "host:", "host:99999", ":80"])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(LabError, match="HOST:PORT"):
        daemon.parse_address(text)


def test_a_wrong_command_over_the_socket_is_answered(
    hub_directory: Path, started: daemon.Process
) -> None:
    with pytest.raises(LabError, match="refused set_faults"):
        control.ask({"command": "set_faults", "faults": [{"kind": "boom"}]}, hub_directory)
    with pytest.raises(LabError, match="no command 'dance'"):
        control.ask({"command": "dance"}, hub_directory)
