"""job start, status, run and stop against a systemctl that answers as a test says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import jobs
from fleet_host.errors import HostError, SpecError
from fleet_host.status import Progress

if TYPE_CHECKING:
    from pathlib import Path

INACTIVE = {"LoadState": "loaded", "ActiveState": "inactive", "Result": "success"}
BROKEN_WORK = "tests.unit.host.test_jobs_commands"


@dataclass
class FakeSystemd:
    root: Path

    def says(self, **properties: str) -> None:
        lines = [f"{key}={value}" for key, value in {**INACTIVE, **properties}.items()]
        (self.root / "show").write_text("\n".join(lines) + "\n")

    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().splitlines()

    def started(self) -> int:
        return sum("start --no-block" in call for call in self.calls())


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSystemd:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, body in {
        "systemctl": 'echo "$@" >>"$FAKE_SYSTEMD/calls"\ncase "$*" in *" show "*) '
        'cat "$FAKE_SYSTEMD/show";; *) if [ -e "$FAKE_SYSTEMD/fails" ]; then '
        'echo "Failed to start: bus is gone" >&2; exit 1; fi;; esac',
        "journalctl": 'echo "$@" >>"$FAKE_SYSTEMD/calls"\necho "Killed by the test"',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SYSTEMD", str(tmp_path))
    for name in ("llm", "run", "state"):
        monkeypatch.setenv(
            {"llm": "FLEET_LLM_ROOT"}.get(name, f"FLEET_{name.upper()}_ROOT"), str(tmp_path / name)
        )
        (tmp_path / name).mkdir()
    (tmp_path / "llm" / "jobs").mkdir()
    for name in ("run", "state"):
        (tmp_path / name / "llm-pull" / "m1").mkdir(parents=True)
    (tmp_path / "calls").touch()
    made = FakeSystemd(tmp_path)
    made.says()
    return made


JOB = {"kind": "pull", "id": "m1"}


def start(**spec: Any) -> dict[str, Any]:
    return jobs.start({**JOB, "spec": spec})


def ended(systemd: FakeSystemd, run: str, invocation: str, **document: Any) -> None:
    path = systemd.root / "state" / "llm-pull" / "m1" / "result.json"
    path.write_text(json.dumps({"run": run, "invocation_id": invocation, **document}))


def told(systemd: FakeSystemd, run: str, invocation: str, phase: str = "download") -> None:
    path = systemd.root / "run" / "llm-pull" / "m1" / "status.json"
    progress = Progress(path, {"run": run, "invocation_id": invocation})
    progress.phase(phase, total=100, unit="bytes")


def test_a_start_stores_the_spec_before_systemd_is_asked(systemd: FakeSystemd) -> None:
    answer = start(a=1)
    stored = json.loads((systemd.root / "llm/jobs/pull/m1/spec.json").read_text())
    assert stored["spec"] == {"a": 1}
    assert stored["run"] == answer["run"]
    assert answer["state"] == "started"
    assert systemd.calls()[-1].endswith("start --no-block llm-pull@m1.service")
    mode = (systemd.root / "llm/jobs/pull/m1/spec.json").stat().st_mode & 0o777
    assert mode == 0o640


def test_a_running_job_with_the_same_spec_is_attached_to(systemd: FakeSystemd) -> None:
    first = start(a=1)
    systemd.says(ActiveState="active", InvocationID="i1")
    second = start(a=1)
    assert (second["state"], second["run"]) == ("attached", first["run"])
    assert systemd.started() == 1


def test_a_queued_job_counts_as_running(systemd: FakeSystemd) -> None:
    start(a=1)
    systemd.says(Job="77")
    assert start(a=1)["state"] == "attached"
    found = jobs.status(JOB)
    assert (found["state"], found["progress"]["phase"]) == ("running", "queued")


def test_a_running_job_with_another_spec_refuses(systemd: FakeSystemd) -> None:
    start(a=1)
    systemd.says(ActiveState="active", InvocationID="i1")
    with pytest.raises(HostError, match="running with another request"):
        start(a=2)
    stored = json.loads((systemd.root / "llm/jobs/pull/m1/spec.json").read_text())
    assert stored["spec"] == {"a": 1}


def test_a_unit_that_is_not_installed_is_named(systemd: FakeSystemd) -> None:
    systemd.says(LoadState="not-found", LoadError="org.freedesktop.systemd1.NoSuchUnit")
    with pytest.raises(HostError, match=r"cannot load llm-pull@m1\.service"):
        start(a=1)


def test_systemds_refusal_is_passed_on(systemd: FakeSystemd) -> None:
    (systemd.root / "fails").touch()
    with pytest.raises(HostError) as caught:
        start(a=1)
    assert caught.value.why == "Failed to start: bus is gone"


def test_a_host_that_is_not_prepared_is_named(systemd: FakeSystemd) -> None:
    (systemd.root / "llm" / "jobs").rmdir()
    with pytest.raises(HostError, match="cannot start"):
        start(a=1)


@pytest.mark.parametrize(
    "request_", [{"kind": "x", "id": "a"}, {"kind": "pull", "id": "../a"}, {"kind": "pull"}]
)
def test_a_bad_name_is_the_callers_mistake(systemd: FakeSystemd, request_: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        jobs.status(request_)


def test_a_job_that_was_never_asked_for_is_absent(systemd: FakeSystemd) -> None:
    assert jobs.status(JOB)["state"] == "absent"


def test_running_progress_is_of_this_run_only(systemd: FakeSystemd) -> None:
    run = start(a=1)["run"]
    systemd.says(ActiveState="active", InvocationID="i2")
    told(systemd, "an older run", "i1")
    assert jobs.status(JOB)["progress"]["phase"] == "queued"
    told(systemd, run, "i2")
    found = jobs.status(JOB)
    assert found["progress"]["phase"] == "download"
    assert found["log_tail"] == ["download"]


def test_a_result_counts_after_systemd_has_forgotten_the_unit(systemd: FakeSystemd) -> None:
    run = start(a=1)["run"]
    ended(systemd, run, "i1", state="done", result={"n": 1}, log_tail=["ok"], seconds=2)
    found = jobs.status(JOB)
    assert (found["state"], found["result"], found["log_tail"]) == ("done", {"n": 1}, ["ok"])


def test_an_old_runs_result_is_never_this_runs(systemd: FakeSystemd) -> None:
    old = start(a=1)["run"]
    ended(systemd, old, "i1", state="done", result={}, log_tail=[])
    start(a=1)
    found = jobs.status(JOB)
    assert found["state"] == "failed"
    assert "did not run" in found["error"]["what"]


def test_a_second_invocation_of_one_run_does_not_inherit_its_result(systemd: FakeSystemd) -> None:
    run = start(a=1)["run"]
    ended(systemd, run, "i1", state="done", result={}, log_tail=[])
    systemd.says(ActiveState="failed", Result="signal", ExecMainStatus="9", InvocationID="i2")
    assert jobs.status(JOB)["killed"] is True


@pytest.mark.parametrize(
    ("result", "status", "expected"),
    [
        ("signal", "9", "SIGKILL"),
        ("oom-kill", "9", "memory ran out"),
        ("timeout", "15", "TimeoutStopSec"),
        ("exit-code", "217", "user does not exist"),
        ("exit-code", "1", "exit code 1"),
    ],
)
def test_a_killed_job_is_told_from_one_that_failed(
    systemd: FakeSystemd, result: str, status: str, expected: str
) -> None:
    run = start(a=1)["run"]
    told(systemd, run, "i1")
    systemd.says(ActiveState="failed", Result=result, ExecMainStatus=status, InvocationID="i1")
    found = jobs.status(JOB)
    assert (found["state"], found["killed"]) == ("failed", True)
    assert expected in found["error"]["why"]
    assert found["log_tail"] == ["Killed by the test"]
    if status != "217":
        assert "'download'" in found["error"]["what"]


def test_a_power_cut_is_told(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    start(a=1)
    monkeypatch.setattr(jobs, "boot_id", lambda: "the boot after")
    assert "lost power" in jobs.status(JOB)["error"]["why"]


def test_a_clean_failure_keeps_its_words(systemd: FakeSystemd) -> None:
    run = start(a=1)["run"]
    error = {"what": "w", "why": "y", "fix": "f", "detail": []}
    ended(systemd, run, "i1", state="failed", error=error, log_tail=[])
    systemd.says(ActiveState="failed", Result="exit-code", ExecMainStatus="1", InvocationID="i1")
    found = jobs.status(JOB)
    assert (found["state"], found["error"]) == ("failed", error)
    assert "killed" not in found


def test_stored_state_of_a_newer_program_is_refused(systemd: FakeSystemd) -> None:
    start(a=1)
    path = systemd.root / "llm/jobs/pull/m1/spec.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    with pytest.raises(HostError, match="newer program"):
        jobs.status(JOB)


# The unit's side. The work is a function of this module, reached through the table of runners.


def run_unit(systemd: FakeSystemd, work: str, invocation: str = "i1") -> subprocess.Popen[str]:
    """`job run pull m1` as the unit runs it, with this module's function as the work."""
    code = (
        "import sys; from fleet_host import jobs, __main__ as program\n"
        f"import tests.unit.host.test_jobs_commands as work\n"
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
    output, _ = process.communicate(timeout=20)
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
    deadline = time.monotonic() + 10
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
    process.communicate(timeout=10)
    assert process.returncode == 1
    assert "was stopped" in jobs.status(JOB)["error"]["what"]


def test_a_kill_leaves_no_result_of_an_earlier_run(systemd: FakeSystemd) -> None:
    finish(systemd, "work_well")
    process = run_unit(systemd, "work_long", invocation="i2")
    wait_for_phase(systemd, "waiting")
    process.kill()
    process.communicate(timeout=10)
    systemd.says(ActiveState="failed", Result="signal", ExecMainStatus="9", InvocationID="i2")
    assert "SIGKILL" in jobs.status(JOB)["error"]["why"]
    assert not (systemd.root / "state/llm-pull/m1/result.json").exists()


def test_a_run_by_hand_is_refused(systemd: FakeSystemd) -> None:
    start(a=1)
    process = run_unit(systemd, "work_well", invocation="")
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "job start" in json.loads(output)["error"]["fix"]


def test_the_status_is_written_at_most_twice_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    path = tmp_path / "status.json"
    progress = Progress(path)
    progress.phase("download", total=1000, unit="bytes")
    seen = set()
    for step in range(100):
        now[0] += 0.05
        progress.advance(step)
        seen.add(path.stat().st_ino)
    assert len(seen) <= 11
    assert progress.as_dict()["rate"] == pytest.approx(20)
    assert progress.as_dict()["eta_seconds"] == pytest.approx(45, abs=1)
