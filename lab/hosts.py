"""The lab's Python API: what `lab` commands and the host tests call.

Functions that change anything need root and take the machine's lab lock; `run`, `wait_ssh` and
`status` need neither. All raise LabError for what an operator can mend.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lab import cgroups as cg
from lab import lifecycle, network
from lab.commands import command_environment, last_lines
from lab.errors import LabError
from lab.layout import current_layout
from lab.plan import DEFAULT_SUITE, ROLE_GROUPS, Host, address_of, veth_of, wanted_hosts
from lab.preflight import check_machine
from lab.report import say, timed
from lab.standins.gpu_states import HEALTHY, STATES
from lab.state import exclusive, load_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BOOT_TIMEOUT_SECONDS = 90.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class HostStatus:
    """One host as `lab status --json` prints it."""

    name: str
    suite: str
    address: str
    running: bool
    link_up: bool
    groups: tuple[str, ...]
    gpu_state: str


def up(
    count: int = 1,
    *,
    suite: str = DEFAULT_SUITE,
    debian13: int = 0,
    debian13_roles: Sequence[str] = ROLE_GROUPS,
    install: bool = False,
) -> list[Host]:
    """Make and start gpu1..gpuCOUNT and t1..tDEBIAN13, and wait until ssh works on each."""
    layout = current_layout()
    wanted = wanted_hosts(count, suite, debian13, debian13_roles)
    with exclusive_as_root("up", install=install):
        lab = lifecycle.open_lab(layout)
        with timed(f"starting {' '.join(host.name for host in wanted) or 'no hosts'}"):
            started = lifecycle.bring_up(lab, wanted)
            for host in started:
                wait_ssh(host.name)
        lifecycle.tidy(lab)
    return started


def down(*, purge: bool = False) -> None:
    """Remove everything the lab made; the cached base, logs and admin key only with `purge`."""
    with exclusive_as_root("down"):
        lifecycle.take_down(lifecycle.open_lab(current_layout()), purge=purge)


def reset(*names: str) -> None:
    """Fresh clones with the same names, addresses and keys; all hosts if none is named."""
    with exclusive_as_root("reset"):
        lab = lifecycle.open_lab(current_layout())
        chosen = [lifecycle.known_host(lab, name) for name in names] or lab.state.sorted_hosts()
        with timed(f"resetting {' '.join(host.name for host in chosen) or 'no hosts'}"):
            lifecycle.ensure_machine(lab)
            for host in chosen:
                lifecycle.stop_host(lab, host.name)
                lifecycle.renew_host(lab, host)
                lifecycle.start_host(lab, lab.state.hosts[host.name])
            for host in chosen:
                wait_ssh(host.name)
        lifecycle.tidy(lab)


def kill(name: str) -> None:
    """Power loss: nothing inside gets a chance to write. The host stays off until `boot`."""
    with exclusive_as_root("kill"):
        lab = lifecycle.open_lab(current_layout())
        lifecycle.known_host(lab, name)
        lifecycle.stop_host(lab, name)


def boot(name: str, *, wait: bool = True) -> None:
    """Start a host that is off, and plug its cable in."""
    with exclusive_as_root("boot"):
        lab = lifecycle.open_lab(current_layout())
        host = lifecycle.known_host(lab, name)
        with timed(f"booting {name}"):
            lifecycle.ensure_machine(lab)
            lifecycle.start_host(lab, host)
            if wait:
                wait_ssh(name)


def cut(name: str) -> None:
    """Pull the host's cable; its processes run on."""
    set_cable(name, up=False)


def heal(name: str) -> None:
    """Plug the host's cable in again."""
    set_cable(name, up=True)


def set_cable(name: str, *, up: bool) -> None:
    with exclusive_as_root("heal" if up else "cut"):
        lab = lifecycle.open_lab(current_layout())
        lifecycle.known_host(lab, name)
        network.set_link(name, up=up)


def gpu(name: str, state: str) -> None:
    """Put the host's GPUs into one of the states of lab/standins/gpu_states.py, at once."""
    if state not in STATES:
        raise LabError(
            what=f"unknown GPU state {state!r}",
            why=f"states are {', '.join(STATES)}",
            fix=f"`lab gpu {name} {HEALTHY}` makes the GPUs healthy again",
        )
    with exclusive_as_root("gpu"):
        lab = lifecycle.open_lab(current_layout())
        lifecycle.known_host(lab, name)
        lifecycle.show_gpu_state(lab.layout.host(name).shown, state)


def gpu_state(name: str) -> str:
    path = current_layout().host(name).shown / "gpu-state"
    return path.read_text().strip() if path.is_file() else HEALTHY


def status() -> list[HostStatus]:
    """All hosts, in order; empty when the lab is down."""
    layout = current_layout()
    state = load_state(layout.state_file)
    if not state.hosts:
        return []
    cgroups = cg.machine_cgroups()
    return [
        HostStatus(
            name=host.name,
            suite=host.suite,
            address=host.address,
            running=cg.is_running(cgroups, host.name),
            link_up=network.is_link_up(veth_of(host.name)),
            groups=host.groups,
            gpu_state=gpu_state(host.name),
        )
        for host in state.sorted_hosts()
    ]


def status_document() -> list[dict[str, object]]:
    return [asdict(entry) for entry in status()]


def ssh_command(host: str, argv: Sequence[str] = ()) -> list[str]:
    """ssh to a host as `admin`; argv is quoted for the remote shell, word by word."""
    base = ["ssh", "-F", str(current_layout().ssh_config), host]
    return [*base, "--", shlex.join(argv)] if argv else base


def run(
    host: str,
    argv: Sequence[str],
    *,
    check: bool = False,
    input_text: str | None = None,
    timeout_seconds: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program on a host as `admin` (`sudo -n` for root). Exit 255 is ssh's own failure."""
    return subprocess.run(
        ssh_command(host, argv),
        input=input_text,
        stdin=subprocess.DEVNULL if input_text is None else None,
        capture_output=True,
        text=True,
        check=check,
        timeout=timeout_seconds,
        env=command_environment(),
    )


def refuse_unknown(name: str) -> None:
    """LabError unless the lab has a host of that name."""
    layout = current_layout()
    known = load_state(layout.state_file).sorted_hosts()
    if name not in {host.name for host in known}:
        lifecycle.raise_unknown(name, known)


def has_ssh_banner(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=0.5) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def wait_ssh(name: str, timeout_seconds: float = BOOT_TIMEOUT_SECONDS) -> None:
    """Until a login works: sshd answers before systemd-user-sessions lets anybody but root in."""
    started = time.monotonic()
    cgroups = cg.machine_cgroups()
    words = "no answer on port 22"
    while True:
        elapsed = time.monotonic() - started
        if has_ssh_banner(address_of(name)):
            try:
                result = run(name, ["true"], timeout_seconds=15)
                if result.returncode == 0:
                    return
                words = last_lines(result.stderr) or words
            except subprocess.TimeoutExpired:
                words = "a login took more than 15 s"
        # A supervisor needs a moment to join its cgroup.
        died = elapsed > 3 and not cg.is_running(cgroups, name)
        if died or elapsed > timeout_seconds:
            raise_no_ssh(name, words, elapsed, died=died)
        time.sleep(_POLL_SECONDS)


def raise_no_ssh(name: str, words: str, elapsed_seconds: float, *, died: bool) -> None:
    log = current_layout().console_log(name)
    tail = last_lines(log.read_text(errors="replace")) if log.is_file() else ""
    raise LabError(
        what=f"{name} is off" if died else f"no ssh to {name} after {elapsed_seconds:.0f} s",
        why=f"{words}; its console's last lines:\n{tail or '(none)'}",
        fix=f"see {log}; `lab boot {name}` starts it, `lab reset {name}` makes it anew",
    )


@contextmanager
def exclusive_as_root(command: str, *, install: bool = False) -> Iterator[None]:
    """Root and packages checked, then the lock held."""
    check_machine(command, current_layout().directory, install=install)
    os.umask(0o022)  # hosts' directories are readable to their users, whatever the caller's mask
    with exclusive(f"lab {command}"):
        yield


def describe_gpu_states() -> str:
    return "\n".join(f"  {name:<15} {state['about']}" for name, state in STATES.items())


def say_ready(hosts: Sequence[Host]) -> None:
    for host in hosts:
        say(f"{host.name} {host.address} ready: lab ssh {host.name}")
