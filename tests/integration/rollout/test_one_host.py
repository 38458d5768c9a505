"""A rollout with the real pyinfra and the real host program, over this machine: however it ends,
the lock is given back or is taken over, and the host keeps how far it came."""

from __future__ import annotations

import os
import pty
import signal
from typing import TYPE_CHECKING

import pytest

from tests.fakes.rollout_host import PATIENCE_SECONDS, ended, wait_for

if TYPE_CHECKING:
    from tests.fakes.rollout_host import RolloutHost


def test_to_the_end(rollout_host: RolloutHost) -> None:
    """Also on a host without the program, which is lent it and does not keep it."""
    rollout_host.behave(tell={"result": {"release": "r2", "seconds": 3.0}})
    code, printed = rollout_host.drive("0")
    assert code == 0, printed
    assert "gpu01: serves the release" in printed
    assert rollout_host.state("lease.json") is None
    kept = rollout_host.state("rollout.json")
    assert (kept["id"], kept["state"], kept["result"], kept["hosts"]) == (
        "ro1", "ended", "live", {"gpu01": "r2"},
    )  # fmt: skip
    assert [event["what"] for event in rollout_host.events()] == ["rollout began", "rollout ended"]
    assert not (rollout_host.llm_root / "bin/fleet-host").exists()
    report = rollout_host.report()
    assert report["end"]["code"] == 0
    assert report["hosts"]["gpu01"]["outcome"]["kind"] == "live"


def test_a_host_that_went_back(rollout_host: RolloutHost) -> None:
    rollout_host.engine("reverted", "ro1", "r1")
    error = {"what": "release r2 did not go live", "why": "exit status 2", "fix": "mend it",
             "detail": ["vllm: error: unrecognized arguments: --nope"]}  # fmt: skip
    rollout_host.behave(tell={"error": error}, fail=True)
    code, printed = rollout_host.drive()
    assert code == 3, printed
    for words in (
        "gpu01: went back and serves its previous release: release r2 did not go live exit status",
        "| vllm: error: unrecognized arguments: --nope",
        "gpu01 serves r1",
        "next: mend it",
        "stopped: the canary gpu01 went back to its previous release (exit code 3)",
    ):
        assert words in printed
    assert rollout_host.state("lease.json") is None
    last = rollout_host.events()[-1]
    assert (last["result"], last["cause"]) == ("back", "release r2 did not go live exit status 2")


def test_a_host_that_serves_nothing(rollout_host: RolloutHost) -> None:
    rollout_host.engine("failed", "ro1", None, active=False)
    rollout_host.behave(tell={"error": {"what": "both failed"}}, fail=True)
    code, printed = rollout_host.drive()
    assert code == 5, printed
    assert "gpu01: SERVES NOTHING: both failed" in printed


def test_a_failure_before_the_switch(rollout_host: RolloutHost) -> None:
    rollout_host.engine("done", "another", "r1")
    rollout_host.behave(say=["pull: the hub is gone"], fail=True)
    code, printed = rollout_host.drive()
    assert code == 3, printed
    assert "gpu01: failed before it was switched: " in printed
    assert "| pull: the hub is gone" in printed


def test_another_run_has_the_host(rollout_host: RolloutHost) -> None:
    rollout_host.behave(sleep=600)
    with rollout_host.start() as first:
        rollout_host.begun(first)
        code, printed = rollout_host.drive()
        assert code == 8, printed
        assert "another run is at work on this host" in printed
        assert "fleet lock status prod" in printed
        said = rollout_host.fleet("lock", "status", "prod")
        assert said.returncode == 0, said.stderr
        assert said.stdout.startswith("gpu01: held by root@")
        assert ": rollout ro1 on " in said.stdout
        code, printed = ended(first, signal.SIGINT)
    assert code == 130


def test_a_plan_that_is_stale_changes_nothing(rollout_host: RolloutHost) -> None:
    rollout_host.behave(tell={"result": {"release": "r2"}})
    assert rollout_host.drive("0")[0] == 0
    code, printed = rollout_host.drive("0")
    assert code == 1, printed
    assert "the host has changed since it was planned" in printed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_gives_the_host_back(rollout_host: RolloutHost, number: int) -> None:
    rollout_host.engine("starting", "ro1", "r2")
    (rollout_host.root / "golive").write_text("active\n")
    rollout_host.behave(sleep=600)
    with rollout_host.start() as process:
        rollout_host.begun(process)
        code, printed = ended(process, number)
    assert code == 130, printed
    assert "gpu01: its go-live (starting) goes on by itself" in printed
    assert "fleet rollout prod --resume" in printed
    assert rollout_host.state("lease.json") is None
    assert rollout_host.state("rollout.json")["state"] == "interrupted"
    assert rollout_host.report()["end"]["code"] == 130


def test_a_closed_terminal_ends_it_as_ctrl_c_does(rollout_host: RolloutHost) -> None:
    """A real one: what is printed to it then fails, which a pipe would take."""
    rollout_host.engine("starting", "ro1", "r2")
    rollout_host.behave(sleep=600)
    terminal, its_end = pty.openpty()
    with rollout_host.start(stdout=its_end) as process:
        os.close(its_end)
        rollout_host.begun(process)
        os.close(terminal)
        process.send_signal(signal.SIGHUP)
        assert process.wait(PATIENCE_SECONDS) == 130
    assert rollout_host.state("lease.json") is None
    assert rollout_host.state("rollout.json")["state"] == "interrupted"
    assert rollout_host.report()["end"]["code"] == 130


def test_killed_its_child_dies_and_the_next_run_takes_over(rollout_host: RolloutHost) -> None:
    rollout_host.behave(sleep=600)
    with rollout_host.start() as process:
        rollout_host.begun(process)
        children = _children(process.pid)
        assert children
        process.kill()
        process.wait()
        wait_for(lambda: not any(_alive(child) for child in children))
    assert rollout_host.state("lease.json") is not None
    assert rollout_host.state("rollout.json")["state"] == "running"
    assert "that process is gone" in rollout_host.fleet("lock", "status", "prod").stdout
    rollout_host.behave(tell={"result": {"release": "r2"}})
    code, printed = rollout_host.drive()
    assert code == 0, printed
    whats = [event["what"] for event in rollout_host.events()]
    assert whats == ["rollout began", "lease taken over", "rollout goes on", "rollout ended"]


def _children(pid: int) -> list[int]:
    text = open(f"/proc/{pid}/task/{pid}/children").read()  # noqa: PTH123, SIM115
    return [int(word) for word in text.split()]


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_lock_is_released_by_hand(rollout_host: RolloutHost) -> None:
    rollout_host.behave(sleep=600)
    with rollout_host.start() as process:
        rollout_host.begun(process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert rollout_host.fleet("lock", "release", "prod").returncode == 1  # nobody to ask
    said = rollout_host.fleet("lock", "release", "prod", "--yes")
    assert said.returncode == 0, said.stderr
    assert "gpu01: free" in said.stdout
    assert rollout_host.state("lease.json") is None
    said = rollout_host.fleet("lock", "status", "prod")
    assert "gpu01: free; rollout ro1 of root@" in said.stdout
