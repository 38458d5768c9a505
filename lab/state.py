"""state.json: the hosts that were asked for and the sysctls that were changed.

Whether a host runs is never stored: it is read from its cgroup, so that a killed lab command or
a rebooted machine cannot make the file lie.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lab.durable import read_if_there, write_atomic
from lab.errors import LabError
from lab.layout import LOCK_FILE
from lab.plan import Host, sort_key
from lab.report import say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = 1


@dataclass
class SysctlChange:
    """A sysctl of the machine before `up` and as `up` set it, both as text."""

    before: str
    now: str


@dataclass
class State:
    """Everything the lab remembers between commands."""

    hosts: dict[str, Host] = field(default_factory=dict)
    sysctls: dict[str, SysctlChange] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    """Directories of the machine that were not there, or no mount points, before `up`."""

    def sorted_hosts(self) -> list[Host]:
        return sorted(self.hosts.values(), key=lambda host: sort_key(host.name))


def parse_state(text: str, path: Path) -> State:
    """State from JSON text. LabError if it is not JSON, or of a newer schema, or incomplete."""
    try:
        document: dict[str, Any] = json.loads(text)
        schema = document["schema"]
        if schema == SCHEMA:
            return State(
                hosts={
                    name: Host(name, entry["suite"], tuple(entry["groups"]), tuple(entry["lower"]))
                    for name, entry in document["hosts"].items()
                },
                sysctls={
                    key: SysctlChange(entry["before"], entry["now"])
                    for key, entry in document["sysctls"].items()
                },
                made=list(document["made"]),
            )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(
            what=f"{path} cannot be read",
            why=f"it is not the lab's state: {type(error).__name__}: {error}",
            fix=f"move {path} away and run `lab down`: it finds what it made by name",
        ) from error
    raise LabError(
        what=f"{path} has schema {schema}, this lab knows {SCHEMA}",
        why="it was written by another version of the lab",
        fix="run `lab down` with the version that wrote it",
    )


def render_state(state: State) -> str:
    document = {
        "schema": SCHEMA,
        "hosts": {
            host.name: {
                "suite": host.suite,
                "groups": list(host.groups),
                "lower": list(host.lower),
            }
            for host in state.sorted_hosts()
        },
        "sysctls": {
            key: {"before": change.before, "now": change.now}
            for key, change in state.sysctls.items()
        },
        "made": state.made,
    }
    return json.dumps(document, indent=2) + "\n"


def load_state(path: Path) -> State:
    """The stored state, or an empty one where the lab was never up."""
    data = read_if_there(path)
    return parse_state(data.decode(), path) if data is not None else State()


def save_state(path: Path, state: State) -> None:
    write_atomic(path, render_state(state))


@contextmanager
def exclusive(purpose: str) -> Iterator[None]:
    """Hold the machine's lab lock; wait, and say for whom, while another lab command has it.

    flock, so that the lock ends with its process however that ends. Child processes do not get the
    descriptor (Python opens with O_CLOEXEC), else a running host would keep it.
    """
    LOCK_FILE.parent.mkdir(parents=True, exist_ok=True)
    with LOCK_FILE.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            say(f"waiting for another lab command to end{f' ({holder})' if holder else ''}")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate()
        file.write(f"pid {os.getpid()}: {purpose}\n")
        file.flush()
        yield
