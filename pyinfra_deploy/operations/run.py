"""Who is running: the identity of this run, by which hosts tell two runs apart."""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pyinfra_deploy.operations.rollout_run import this_rollout


@dataclass(frozen=True)
class Run:
    """One run of a deploy: `owner` is user@machine, `pid_start` the kernel's start tick of `pid`
    (proc(5), /proc/PID/stat field 22), so that a reused process number is not taken for it."""

    owner: str
    machine: str
    run: str
    pid: int
    pid_start: int

    def as_spec(self) -> dict[str, Any]:
        return asdict(self)


@cache
def this_run() -> Run:
    """A step of a rollout is the rollout's: hosts know it by that one."""
    rollout = this_rollout()
    return Run(**rollout.run) if rollout is not None else own_run()


def own_run() -> Run:
    return Run(
        owner=f"{getpass.getuser()}@{socket.gethostname()}",
        machine=machine_identity(),
        run=uuid.uuid4().hex,
        pid=os.getpid(),
        pid_start=start_tick(os.getpid()) or 0,
    )


def machine_identity() -> str:
    """HOST NAME:MACHINE ID:BOOT ID. The first two tell the machine, the last one its boot."""
    parts = [socket.gethostname()]
    for name in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        path = Path(name)
        parts.append(path.read_text().strip() if path.exists() else "")
    return ":".join(parts)


def start_tick(pid: int) -> int | None:
    """The start time of a process in clock ticks since boot; None when there is no such process, or
    /proc hides it, as it may another user's (proc(5), hidepid)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The command's name may hold spaces and brackets: count from the last bracket.
    return int(text.rsplit(")", 1)[1].split()[19])


def is_dead_run_of_this_machine(lease: object) -> bool:
    """Whether a lease belongs to a run of this machine whose process is gone, or to an
    earlier boot of it."""
    if not isinstance(lease, dict) or not lease:
        return False
    machine, _, boot = str(lease.get("machine", "")).rpartition(":")
    this_machine, _, this_boot = machine_identity().rpartition(":")
    if machine != this_machine:
        return False
    pid, started = lease.get("pid"), lease.get("pid_start")
    return boot != this_boot or (isinstance(pid, int) and pid > 0 and _is_gone(pid, started))


def stealing(lease: object) -> dict[str, Any]:
    """For `lease acquire`: {steal_run} where the host's lease is of a dead run of this machine."""
    if isinstance(lease, dict) and is_dead_run_of_this_machine(lease):
        return {"steal_run": lease["run"]}
    return {}


def _is_gone(pid: int, started: object) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # it runs, and is another user's (kill(2))
    tick = start_tick(pid)
    return tick is not None and tick != started
