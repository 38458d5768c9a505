"""The lease of a host, from the side of the run that takes it, and who a run is."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from paramiko import SSHException

from pyinfra_deploy.operations import lease, program
from pyinfra_deploy.operations import run as runs
from tests.fakes.pyinfra_host import ROOT, refusal

if TYPE_CHECKING:
    from tests.fakes.pyinfra_host import PyinfraWorld


@pytest.fixture(autouse=True)
def _messages(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pyinfra")


def acquire(world: PyinfraWorld, lease_seen: Any = None, host: str = "gpu01") -> bool:
    return lease.acquire(
        world.state, world.host(host), llm_root=ROOT, generation_seen=4, lease_seen=lease_seen
    )


def test_it_is_taken_by_who_runs_and_by_what_was_seen(world: PyinfraWorld) -> None:
    assert acquire(world)
    (sent,) = world.script.sent
    me = runs.this_run()
    assert sent.spec == {
        "owner": me.owner,
        "machine": me.machine,
        "run": me.run,
        "pid": os.getpid(),
        "pid_start": me.pid_start,
        "ttl_seconds": lease.TTL_SECONDS,
        "generation_seen": 4,
    }


def test_a_refusal_fails_the_host_in_its_own_words(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.script.says("lease acquire", refusal("another run is at work", "alice", "wait for it"))
    assert not acquire(world)
    assert "lease: another run is at work" in caplog.text
    assert "fix: wait for it" in caplog.text
    # It holds nothing, so it neither renews nor gives back.
    lease.renew(world.state, world.host(), llm_root=ROOT)
    lease.release(world.state, world.host())
    assert world.script.commands() == ["lease acquire"]


def test_a_lost_connection_fails_the_host(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.script.says("lease acquire", SSHException("gone"))
    assert not acquire(world)
    assert "run again" in caplog.text


def dead_process() -> tuple[int, int]:
    """(pid, start tick) of a process that is gone."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = runs.start_tick(process.pid)
        assert started is not None
        process.kill()
    return process.pid, started


def of_this_machine(**change: Any) -> dict[str, Any]:
    return {**replace(runs.this_run(), run="earlier").as_spec(), **change}


def another(part: int, text: str) -> str:
    """This machine's identity with one of its three parts changed."""
    parts = runs.machine_identity().split(":")
    parts[part] = text
    return ":".join(parts)


def test_a_dead_run_of_this_machine_is_recognised() -> None:
    pid, started = dead_process()
    assert runs.is_dead_run_of_this_machine(of_this_machine(pid=pid, pid_start=started))


@pytest.mark.parametrize(
    ("change", "dead"),
    [
        # It runs, in this very process.
        ({}, False),
        # Its number is another process's now.
        ({"pid_start": 1}, True),
        # The machine was rebooted since; whatever has its number is not it.
        ({"machine": another(2, "the boot before")}, True),
        # Another machine's processes cannot be judged from here.
        ({"machine": another(0, "desk")}, False),
        ({"machine": another(1, "0123456789abcdef")}, False),
        ({"machine": another(0, "desk"), "pid": 1 << 30, "pid_start": 1}, False),
        # Nothing is guessed from a lease that does not say.
        ({"pid": None}, False),
        ({"pid": "7"}, False),
        ({"pid": 0}, False),
        ({"pid": -1}, False),
        ({"machine": None}, False),
    ],
)
def test_whether_a_lease_is_of_a_dead_run(change: dict[str, Any], dead: bool) -> None:
    assert runs.is_dead_run_of_this_machine(of_this_machine(**change)) is dead


@pytest.mark.parametrize("hidden", [FileNotFoundError, PermissionError])
@pytest.mark.parametrize("of_another_user", [False, True])
def test_a_process_that_proc_hides_is_not_called_dead(
    monkeypatch: pytest.MonkeyPatch, hidden: type[OSError], of_another_user: bool
) -> None:
    """hidepid=2 hides another user's /proc/PID, hidepid=1 forbids to read it (proc(5))."""

    def hide(path: Path) -> str:
        if path.name == "stat":
            raise hidden
        return read(path)

    def forbidden(_pid: int, _number: int) -> None:
        raise PermissionError

    lease, (gone, started) = of_this_machine(), dead_process()
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", hide)
    assert runs.is_dead_run_of_this_machine(of_this_machine(pid=gone, pid_start=started))
    if of_another_user:
        monkeypatch.setattr(os, "kill", forbidden)
    assert not runs.is_dead_run_of_this_machine(lease)


@pytest.mark.parametrize("nothing", [None, {}, [], [1], "x", 7])
def test_no_lease_is_nobodys(nothing: Any) -> None:
    assert not runs.is_dead_run_of_this_machine(nothing)


def test_a_dead_runs_lease_is_asked_for_by_name(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    assert acquire(world, of_this_machine(pid_start=1, owner="alice@desk"))
    assert world.script.sent[0].spec["steal_run"] == "earlier"
    assert "(alice@desk) was killed: taking over" in caplog.text


def test_a_living_runs_lease_is_not(world: PyinfraWorld) -> None:
    assert acquire(world, of_this_machine())
    assert "steal_run" not in world.script.sent[0].spec


def test_it_is_renewed_and_given_back_once(world: PyinfraWorld) -> None:
    acquire(world)
    lease.renew(world.state, world.host(), llm_root=ROOT)
    lease.release(world.state, world.host())
    lease.release(world.state, world.host())
    assert world.script.commands() == ["lease acquire", "lease renew", "lease release"]
    assert world.script.sent[1].spec["ttl_seconds"] == lease.TTL_SECONDS
    assert world.script.sent[2].spec == runs.this_run().as_spec()


@pytest.mark.parametrize("answer", [refusal("no longer holds"), SSHException("gone")])
def test_what_cannot_be_renewed_or_given_back_is_a_warning(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    acquire(world)
    for command in ("lease renew", "lease release"):
        world.script.says(command, answer)
    lease.renew(world.state, world.host(), llm_root=ROOT)
    lease.release(world.state, world.host())
    assert "lease not renewed" in caplog.text
    assert "lease not given back" in caplog.text


def test_a_failed_host_gives_its_lease_back_and_no_other_does(world: PyinfraWorld) -> None:
    """pyinfra drops a failed host, the step that gives the lease back included."""
    acquire(world)
    acquire(world, host="gpu02")
    world.state.trigger_callbacks("operation_host_error", world.host(), "hash", 0, 0)
    assert world.script.commands("gpu01") == ["lease acquire", "lease release"]
    assert world.script.commands("gpu02") == ["lease acquire"]


def test_a_process_that_is_none_has_no_start() -> None:
    assert runs.start_tick(1 << 30) is None
    own = runs.start_tick(os.getpid())
    assert own is not None
    assert own == runs.this_run().pid_start


def test_a_run_that_is_interrupted_gives_its_leases_back(world: PyinfraWorld) -> None:
    """At Ctrl-C pyinfra (cli.py, cli) disconnects from all hosts, and that is all it does."""
    acquire(world)
    world.host().disconnect()
    world.host().disconnect()
    assert world.script.commands() == ["lease acquire", "lease release"]


def test_a_connection_that_is_made_anew_keeps_the_lease(world: PyinfraWorld) -> None:
    acquire(world)
    world.script.says("job status", SSHException("gone"), {"state": "done"})
    program.call_through_outages(
        world.state, world.host(), "job status", {}, llm_root=ROOT, patience_seconds=60
    )
    assert world.connects == ["gpu01"]
    assert world.script.commands() == ["lease acquire", "job status", "job status"]
    world.host().disconnect()
    assert world.script.commands()[-1] == "lease release"
