"""job start, status, run and stop against a systemctl that answers as a test says."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import jobs
from fleet_host.errors import HostError, SpecError
from fleet_host.status import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.job_systemd import FakeSystemd


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
    with pytest.raises(HostError) as caught:
        start(a=2)
    assert caught.value.what == "llm-pull@m1 is running with another request"
    assert caught.value.why.endswith("asks for other values of: a.")
    assert "'sudo systemctl stop llm-pull@m1.service'" in caught.value.fix
    stored = json.loads((systemd.root / "llm/jobs/pull/m1/spec.json").read_text())
    assert stored["spec"] == {"a": 1}


def asked_while_running(systemd: FakeSystemd, kind: str, running: Any, asked: Any) -> str:
    (systemd.root / "run" / f"llm-{kind}" / "m1").mkdir(parents=True, exist_ok=True)
    request = {"kind": kind, "id": "m1"}
    jobs.start({**request, "spec": running})
    systemd.says(ActiveState="active", InvocationID="i1")
    return str(jobs.start({**request, "spec": asked})["state"])


GO_LIVE = {"release": "r1", "drain_seconds": 120, "proof": {"gpus": ["GPU-1"]}}
ENVIRONMENT = {"path": "/srv/llm/runtimes/x", "requirements": "a==1\n", "index_url": None}
WHEEL = [{"sha256": digit * 64} for digit in "0123"]


@pytest.mark.parametrize(
    ("kind", "running", "asked"),
    [
        ("golive", {**GO_LIVE, "run": "a"}, {**GO_LIVE, "run": "b"}),
        (
            "driver",
            {"packages": ["p"], "go_live": {**GO_LIVE, "run": "a"}},
            {"packages": ["p"], "go_live": {**GO_LIVE, "run": "b"}},
        ),
        (
            "environment",
            {**ENVIRONMENT, "wheelhouse": "http://10.0.0.1:8471"},
            {**ENVIRONMENT, "wheelhouse": "http://10.0.0.2:8471"},
        ),
        (
            "wheels",
            {"directory": "/w", "wheels": WHEEL, "remove_others": True},
            {"directory": "/w", "wheels": WHEEL[1:3], "remove_others": False},
        ),
    ],
)
def test_a_later_run_that_asks_for_the_same_work_joins_it(
    systemd: FakeSystemd, kind: str, running: Any, asked: Any
) -> None:
    assert asked_while_running(systemd, kind, running, asked) == "attached"
    assert systemd.started() == 1


@pytest.mark.parametrize(
    ("kind", "running", "asked"),
    [
        ("golive", GO_LIVE, {**GO_LIVE, "proof": {"gpus": ["GPU-2"]}}),
        ("driver", {"go_live": GO_LIVE}, {"go_live": None}),
        ("environment", ENVIRONMENT, {**ENVIRONMENT, "index_url": "https://mirror"}),
        ("wheels", {"wheels": WHEEL[:2]}, {"wheels": WHEEL[1:3]}),
        ("pull", {"wheelhouse": "a"}, {"wheelhouse": "b"}),
    ],
)
def test_other_work_is_not_joined(
    systemd: FakeSystemd, kind: str, running: Any, asked: Any
) -> None:
    with pytest.raises(HostError, match="running with another request"):
        asked_while_running(systemd, kind, running, asked)


def test_a_go_live_to_another_release_is_refused_by_name(systemd: FakeSystemd) -> None:
    with pytest.raises(HostError) as caught:
        asked_while_running(systemd, "golive", GO_LIVE, {**GO_LIVE, "release": "r2"})
    assert caught.value.what == "a go-live to release r1 is running"
    assert "asks for release r2" in caught.value.why
    assert "'sudo systemctl stop llm-golive@m1.service'" in caught.value.fix


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


def test_the_journal_tells_once_a_minute_how_far_the_bytes_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = Progress(None)
    progress.phase("download", total=235_000_000_000, unit="bytes", message="118 files")
    for second in range(1, 200):
        now[0] += 1
        progress.advance(second * 80_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "download: 118 files",
        "download: 4.8 GB of 235.0 GB (2%), 80.0 MB/s, about 0 h 47 min left",
        "download: 9.6 GB of 235.0 GB (4%), 80.0 MB/s, about 0 h 46 min left",
        "download: 14.4 GB of 235.0 GB (6%), 80.0 MB/s, about 0 h 45 min left",
    ]
    # The status has the figures as such; what comes every minute would push out what is rare.
    assert progress.tail() == ["download: 118 files"]


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
