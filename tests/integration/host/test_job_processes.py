"""`job run` as a unit runs it: a process of its own, which may be stopped and killed.

The work is a function of this module, reached through the table of runners.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import jobs
from fleet_host.errors import HostError

if TYPE_CHECKING:
    from fleet_host.status import Progress

    from tests.fakes.job_systemd import FakeSystemd

JOB = {"kind": "pull", "id": "m1"}


def start(**spec: Any) -> dict[str, Any]:
    return jobs.start({**JOB, "spec": spec})


def run_unit(systemd: FakeSystemd, work: str, invocation: str = "i1") -> subprocess.Popen[str]:
    """`job run pull m1` as the unit runs it, with this module's function as the work."""
    code = (
        "import sys; from fleet_host import jobs, __main__ as program\n"
        f"import tests.integration.host.test_job_processes as work\n"
        f"jobs.RUNNERS['pull'] = 'x:{work}'; sys.modules['fleet_host.x'] = work\n"
        "sys.argv = ['fleet-host', 'job', 'run', 'pull', 'm1']; sys.exit(program.main())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("INVOCATION_ID", None)
    if invocation:
        environment["INVOCATION_ID"] = invocation
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
    )


def work_well(spec: dict[str, Any], progress: Progress) -> dict[str, Any]:
    progress.phase("counting", total=2, unit="things")
    progress.advance(2)
    return {"got": spec}


def work_badly(_spec: dict[str, Any], _progress: Progress) -> dict[str, Any]:
    raise HostError("nothing worked", "a test said so.", "Do better.", ["line"])


def work_brokenly(_spec: dict[str, Any], _progress: Progress) -> dict[str, Any]:
    raise OSError(28, "No space left on device", "/srv/x")


def work_long(_spec: dict[str, Any], progress: Progress) -> dict[str, Any]:
    progress.phase("waiting")
    time.sleep(30)
    return {}


def finish(systemd: FakeSystemd, work: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
    start(a=1)
    process = run_unit(systemd, work)
    output, _ = process.communicate(timeout=60)
    return process.returncode, json.loads(output), jobs.status(JOB)


def test_a_run_leaves_its_result(systemd: FakeSystemd) -> None:
    code, output, found = finish(systemd, "work_well")
    assert code == 0, output
    assert (found["state"], found["result"]) == ("done", {"got": {"a": 1}}), found
    assert found["progress"]["phase"] == "counting"


def test_a_refusal_leaves_its_words_and_exit_code_1(systemd: FakeSystemd) -> None:
    code, output, found = finish(systemd, "work_badly")
    assert code == 1
    assert output["error"] == found["error"]
    assert found["error"]["what"] == "nothing worked"


def test_a_full_disk_is_said_in_words(systemd: FakeSystemd) -> None:
    _, _, found = finish(systemd, "work_brokenly")
    assert "no space is left" in found["error"]["why"]
    assert "/srv/x" in found["error"]["what"]


def wait_for_phase(systemd: FakeSystemd, phase: str) -> None:
    path = systemd.root / "run/llm-pull/m1/status.json"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists() and json.loads(path.read_text())["progress"]["phase"] == phase:
            return
        time.sleep(0.01)
    pytest.fail(f"the job did not reach {phase}")


def test_a_stop_is_a_failure_with_a_reason(systemd: FakeSystemd) -> None:
    start(a=1)
    process = run_unit(systemd, "work_long")
    wait_for_phase(systemd, "waiting")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was stopped" in jobs.status(JOB)["error"]["what"]


def test_a_kill_leaves_no_result_of_an_earlier_run(systemd: FakeSystemd) -> None:
    finish(systemd, "work_well")
    process = run_unit(systemd, "work_long", invocation="i2")
    wait_for_phase(systemd, "waiting")
    process.kill()
    process.communicate(timeout=60)
    systemd.says(ActiveState="failed", Result="signal", ExecMainStatus="9", InvocationID="i2")
    assert "SIGKILL" in jobs.status(JOB)["error"]["why"]
    assert not (systemd.root / "state/llm-pull/m1/result.json").exists()


def test_a_run_by_hand_is_refused(systemd: FakeSystemd) -> None:
    start(a=1)
    process = run_unit(systemd, "work_well", invocation="")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Run the deploy" in json.loads(output)["error"]["fix"]
