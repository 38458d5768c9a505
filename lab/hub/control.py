"""Switch faults on and read counters while the hub runs, over a Unix socket on this machine.

The socket has mode 0600 and lies in the lab's state directory: no lab host can reach it. One JSON
document a line each way.

    set_faults(Fault("corrupt", path="*.safetensors", times=1))
    ... pull ...
    assert counters()["applied"] == {"corrupt": 1}
    clear_faults()
"""

from __future__ import annotations

import json
import socket
import socketserver
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lab.errors import LabError
from lab.hub.faults import Fault
from lab.hub.places import control_socket, hub_directory

if TYPE_CHECKING:
    from pathlib import Path

    from lab.hub.faults import FaultBoard

_TIMEOUT_SECONDS = 10.0


def set_faults(*faults: Fault, hub: Path | None = None) -> None:
    """These faults and no others, from the next request on. LabError if the hub does not run."""
    ask({"command": "set_faults", "faults": [asdict(fault) for fault in faults]}, hub)


def clear_faults(hub: Path | None = None) -> None:
    """No faults; a branch that a fault moved is back."""
    set_faults(hub=hub)


def faults(hub: Path | None = None) -> list[dict[str, Any]]:
    """The faults that are on, each with `left`, the applications that remain."""
    found: list[dict[str, Any]] = ask({"command": "faults"}, hub)
    return found


def counters(hub: Path | None = None) -> dict[str, dict[str, int]]:
    """`requests` and `bytes` by path (@listing, @revisions, @wheels for those), `statuses`, and
    `applied` by kind of fault, since the start or the last reset."""
    found: dict[str, dict[str, int]] = ask({"command": "counters"}, hub)
    return found


def reset_counters(hub: Path | None = None) -> None:
    ask({"command": "reset_counters"}, hub)


def ask(request: dict[str, Any], hub: Path | None = None) -> Any:
    """One command to the running hub of the directory `hub` (default: the lab's)."""
    path = control_socket(hub or hub_directory())
    try:
        with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rwb") as stream:
            connection.settimeout(_TIMEOUT_SECONDS)
            connection.connect(str(path))
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            line = stream.readline()
    except OSError as error:
        raise LabError(
            "the lab's hub does not answer",
            f"{path}: {error.strerror or error}",
            "start it with `python -m lab.hub start`",
        ) from None
    answer: dict[str, Any] = json.loads(line or b'{"error": "it closed the connection"}')
    if "error" in answer:
        raise LabError(
            f"the lab's hub refused {request['command']}",
            str(answer["error"]),
            "see lab/hub/faults.py for the faults and their values",
        )
    return answer["result"]


def answer(board: FaultBoard, request: dict[str, Any]) -> Any:
    """What the hub does with one command. ValueError, TypeError or KeyError for a wrong one."""
    command = request["command"]
    if command == "set_faults":
        board.replace([Fault(**fault) for fault in request["faults"]])
        return None
    if command == "faults":
        return board.faults()
    if command == "counters":
        return board.counters()
    if command == "reset_counters":
        board.reset_counters()
        return None
    if command == "ping":
        return "pong"
    raise ValueError(f"no command {command!r}")


class ControlServer(socketserver.ThreadingUnixStreamServer):
    """Listens at control_socket(hub). The caller holds the hub's lock: an old socket is dead."""

    daemon_threads = True

    def __init__(self, hub: Path, board: FaultBoard) -> None:
        self.board = board
        self.path = control_socket(hub)
        self.path.unlink(missing_ok=True)
        super().__init__(str(self.path), _ControlHandler)
        self.path.chmod(0o600)

    def server_close(self) -> None:
        super().server_close()
        self.path.unlink(missing_ok=True)


class _ControlHandler(socketserver.StreamRequestHandler):
    server: ControlServer

    def handle(self) -> None:
        for line in self.rfile:
            try:
                reply: dict[str, Any] = {"result": answer(self.server.board, json.loads(line))}
            except (ValueError, TypeError, KeyError) as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            self.wfile.write(json.dumps(reply).encode() + b"\n")
