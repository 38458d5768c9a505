"""The tests' own lab hosts, beside whatever the lab has already: made, and removed at the end.

gpu101 runs the real vLLM by inventories/lab.py; gpu102 (Debian 12) and t81 (Debian 13) run the
stand-in engine by an inventory of the tests' own. An operator's hosts are left alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import pytest

from lab import hosts, lifecycle, network
from lab.hub import daemon
from lab.hub.places import hub_directory, models_directory, wheels_directory
from lab.hub.store import publish, revision
from lab.inventory import write_inventory
from lab.layout import current_layout
from lab.models.catalogue import make_missing, print_line
from lab.plan import BRIDGE_ADDRESS, Host
from tests.standin import wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# Two runs at once have hosts and a hub of their own (lanes.py).
LANE = int(os.environ.get("FLEET_LANE", "1"))
REAL = "gpu101"
DEBIAN12, DEBIAN13 = {1: ("gpu102", "t81"), 2: ("gpu112", "t82")}[LANE]
HUB_ADDRESS = daemon.DEFAULT_ADDRESS if LANE == 1 else f"{BRIDGE_ADDRESS}:8092"
RUN_LOCK = Path(f"/run/lock/fleet-hosts-tests-{LANE}.lock")
FIRST_MODEL = "lab/tiny-qwen3-moe"
SECOND_MODEL = "lab/tiny-second"
# The roles are in the inventory of whoever deploys to a host. In the lab's own, the stand-in hosts
# have none: `fleet keys create lab` must not reach them.
HOSTS = (
    *([Host(REAL, "bookworm", ("lab", "gpu", "gateway"))] if LANE == 1 else []),
    Host(DEBIAN12, "bookworm", ("lab",)),
    Host(DEBIAN13, "trixie", ("lab", "debian13")),
)


@cache
def bring_up(*, keep: bool) -> Callable[[], None]:
    """Fresh hosts, the models and the hub, once a process (tests/hosts and tests/soak share them).
    Returns what brings the lab back to how it was.

    keep: hosts of an earlier run are taken as they are, and stay.
    """
    layout = current_layout()
    hub = hub_directory()
    alone = _only_run()
    done: list[bool] = []
    was_down = is_lab_down()
    hub_ran = daemon.running_process(hub) is not None
    with hosts.exclusive_as_root("up", install=True):
        lab = lifecycle.open_lab(layout)
        if not keep:
            drop(lab, [host.name for host in HOSTS])  # what a killed test run has left
        for host in lifecycle.bring_up(lab, list(HOSTS)):
            hosts.wait_ssh(host.name)
        lifecycle.tidy(lab)
    if LANE == 1:
        make_missing(hub, print_line)
    publish_second_model(hub)
    wheel.publish(wheels_directory(hub))
    daemon.start(hub, HUB_ADDRESS)

    def put_back() -> None:
        if keep or done:
            return
        done.append(True)
        alone.close()
        shutil.rmtree(models_directory(hub) / SECOND_MODEL, ignore_errors=True)
        (wheels_directory(hub) / wheel.WHEEL_NAME).unlink(missing_ok=True)
        if not hub_ran:
            daemon.stop(hub)
        if was_down:
            hosts.down()
            return
        with hosts.exclusive_as_root("down"):
            lab = lifecycle.open_lab(layout)
            drop(lab, [host.name for host in HOSTS])
            lifecycle.tidy(lab)

    return put_back


def is_lab_down() -> bool:
    """Whether a run of tests finds no lab, and is to leave none. Of two at once neither does."""
    return "FLEET_LANE" not in os.environ and not hosts.status()


def _only_run() -> TextIO:
    """The lock of all runs of these tests on this machine, held as long as the file is open: the
    hosts' names and addresses are fixed."""
    RUN_LOCK.parent.mkdir(parents=True, exist_ok=True)
    file = RUN_LOCK.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        pytest.exit(
            f"another run of the hosts' tests uses the same hosts ({file.read().strip()}): wait "
            "for its end",
            returncode=1,
        )
    file.truncate(0)
    file.write(f"process {os.getpid()} in {Path.cwd()}")
    file.flush()
    return file


def publish_second_model(hub: Path) -> None:
    """A copy of the lab's smallest model under another name, for the tests alone."""
    models = models_directory(hub)
    made = hub / "making-second"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(revision(models, FIRST_MODEL, "master").directory, made)
    (made / "README.md").write_text("The tests' second model.\n")
    publish(models, made, SECOND_MODEL)
    shutil.rmtree(made, ignore_errors=True)


def drop(lab: lifecycle.Lab, names: Iterable[str]) -> None:
    known = [name for name in names if name in lab.state.hosts]
    for name in known:
        lifecycle.stop_host(lab, name)
        network.remove_host_network(name)
        lifecycle.discard_clone(lab, name)
        del lab.state.hosts[name]
        shutil.rmtree(lab.layout.host_key(name).parent, ignore_errors=True)
    if known:
        lab.save()
        write_inventory(lab.layout, lab.state)


@contextmanager
def another(host: Host) -> Iterator[None]:
    """One more host of these tests, fresh, for a while."""
    layout = current_layout()
    with hosts.exclusive_as_root("up", install=True):
        lab = lifecycle.open_lab(layout)
        drop(lab, [host.name])
        lifecycle.bring_up(lab, [host])
    try:
        hosts.wait_ssh(host.name)
        yield
    finally:
        with hosts.exclusive_as_root("down"):
            drop(lifecycle.open_lab(layout), [host.name])


def upper_of(name: str) -> Path:
    """The writable layer of a host, where this machine sees its files."""
    return current_layout().host(name).upper


def shell(
    name: str,
    script: str,
    *,
    check: bool = True,
    input_text: str | None = None,
    timeout_seconds: float = 120,
) -> str:
    """Run a script on a host as root; its output. AssertionError with it when it fails."""
    done = hosts.run(
        name,
        ["sudo", "-n", "sh", "-c", script],
        input_text=input_text,
        timeout_seconds=timeout_seconds,
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"{name}: exit {done.returncode} of: {script}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def put_directory(name: str, source: Path, target: str) -> None:
    """Copy what is in a directory of this machine into one of the host's, as by a stick."""
    shell(name, f"mkdir -p {target}")
    command = hosts.ssh_command(name, ["sudo", "-n", "tar", "-C", target, "-xf", "-"])
    packed = subprocess.run(
        ["tar", "-C", str(source), "-cf", "-", "."], capture_output=True, check=True
    ).stdout
    subprocess.run(command, input=packed, check=True, capture_output=True)


def wait_for(condition: Callable[[], bool], seconds: float = 180) -> None:
    """Until the condition holds; AssertionError after `seconds`.

    Whoever asks over SSH keeps both ends busy, so there is a pause as long as the question.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(max(0.05, time.monotonic() - began))
