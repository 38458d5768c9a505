"""The hub as a background process of this machine: start, stop, status."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from lab.durable import write_atomic
from lab.errors import LabError
from lab.hub.control import ControlServer, ask
from lab.hub.places import log_file, process_file, wheels_directory
from lab.hub.server import Hub, HubServer
from lab.hub.stub_wheel import write_stub_wheels
from lab.layout import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_ADDRESS = "10.213.77.1:8090"
_START_SECONDS = 15.0
_STOP_SECONDS = 5.0


@dataclass(frozen=True)
class Process:
    """`started_ticks` is the process's start time in /proc: a reused pid is another process."""

    pid: int
    started_ticks: int
    address: str


def parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise LabError(f"{text!r} is not an address", "it is HOST:PORT", f"try {DEFAULT_ADDRESS}")
    return host, int(port)


def started_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (proc_pid_stat(5), 22nd); None: gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def running_process(hub: Path) -> Process | None:
    """The hub that runs on this directory, if any."""
    try:
        found = Process(**json.loads(process_file(hub).read_text()))
    except FileNotFoundError:
        return None
    return found if started_ticks(found.pid) == found.started_ticks else None


def serve(hub: Path, address: str = DEFAULT_ADDRESS) -> None:
    """Run the hub in this process until SIGTERM or SIGINT."""
    hub.mkdir(parents=True, exist_ok=True)
    with (hub / "hub.lock").open("w") as lock, log_file(hub).open("a", buffering=1) as log:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(
                "a hub already runs on this directory", str(hub), "see `python -m lab.hub status`"
            ) from None
        write_stub_wheels(wheels_directory(hub))
        state = Hub(hub, log=_logger(log))
        server = _bind(address, state)
        control = ControlServer(hub, state.board)
        _write_process(hub, server)
        threading.Thread(target=control.serve_forever, daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
        try:
            server.serve_forever(poll_interval=0.2)
        finally:
            control.shutdown()
            control.server_close()
            server.server_close()
            process_file(hub).unlink(missing_ok=True)


def _logger(log: TextIO) -> Callable[[str], None]:
    def write(line: str) -> None:
        log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {line}\n")

    return write


def _bind(address: str, state: Hub) -> HubServer:
    try:
        return HubServer(parse_address(address), state)
    except OSError as error:
        fix = "see who listens there with `ss -ltnp`, or choose another with --listen"
        if error.errno == errno.EADDRNOTAVAIL:
            fix = "this machine has no such address yet: `lab up` makes the bridge that has it"
        why = os.strerror(error.errno or 0)
        raise LabError(f"the hub cannot listen on {address}", why, fix) from None


def _write_process(hub: Path, server: HubServer) -> None:
    own = Process(
        os.getpid(),
        started_ticks(os.getpid()) or 0,
        f"{server.server_name}:{server.server_port}",
    )
    write_atomic(process_file(hub), json.dumps(asdict(own)).encode())


def start(hub: Path, address: str = DEFAULT_ADDRESS) -> Process:
    """Start the hub in the background, or leave the running one. Returns once it answers."""
    found = running_process(hub)
    if found is not None:
        wanted = "{}:{}".format(*parse_address(address))
        if found.address != wanted:
            raise LabError(
                f"the hub runs at {found.address}, not at {wanted}",
                f"process {found.pid} was started with that address",
                "stop it first: `python -m lab.hub stop`",
            )
        return found
    hub.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "lab.hub", "serve", "--hub-dir", str(hub), "--listen", address]
    with log_file(hub).open("a") as log:
        before = log.tell()
        child = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        found = running_process(hub)
        if found is not None and found.pid == child.pid and _answers(hub):
            return found
        time.sleep(0.05)
    if child.poll() is None:
        child.kill()
        child.wait()
    with log_file(hub).open() as log:
        log.seek(before)
        words = log.read().strip()
    raise LabError("the hub did not start", words or "it wrote nothing", f"see {log_file(hub)}")


def _answers(hub: Path) -> bool:
    try:
        return bool(ask({"command": "ping"}, hub) == "pong")
    except LabError:
        return False


def stop(hub: Path) -> bool:
    """End the hub of this directory, and only that process. False: none was running."""
    found = running_process(hub)
    if found is None:
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.kill(found.pid, number)
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline:
            if started_ticks(found.pid) != found.started_ticks:
                process_file(hub).unlink(missing_ok=True)
                return True
            time.sleep(0.05)
    raise LabError(
        f"the hub, process {found.pid}, does not end",
        "SIGKILL has no effect while it waits for a disk",
        f"see `cat /proc/{found.pid}/stack`, then run this again",
    )
