"""Jobs of a host: started or joined, watched by short polls, told in words at their end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from paramiko import SSHException

from pyinfra_deploy.operations import jobs
from pyinfra_deploy.operations.run import this_run
from tests.fakes.pyinfra_host import ROOT, refusal

if TYPE_CHECKING:
    from tests.fakes.pyinfra_host import PyinfraWorld

RUNNING = {"state": "running", "progress": {"phase": "download", "done": 1, "total": 2}}


@pytest.fixture(autouse=True)
def _messages(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pyinfra")


def run(world: PyinfraWorld, *statuses: Any, renewals: list[int] | None = None) -> Any:
    world.script.says("job status", *statuses)
    return jobs.run_job(
        world.state,
        world.host(),
        kind="pull",
        job_id="Qwen--Qwen3-32B--master",
        spec={"token_file": "hub-token"},
        llm_root=ROOT,
        step="model",
        renew=lambda: (renewals if renewals is not None else []).append(1),
    )


def test_a_job_is_started_watched_and_its_result_returned(world: PyinfraWorld) -> None:
    result = {"model_digest": "d"}
    assert run(world, RUNNING, RUNNING, {"state": "done", "result": result}) == result
    assert world.script.commands() == ["job start", "job status", "job status", "job status"]
    job = {"kind": "pull", "id": "Qwen--Qwen3-32B--master"}
    asked = {"spec": {"token_file": "hub-token"}, "who": this_run().owner}
    assert world.script.sent[0].spec == job | asked
    assert world.script.sent[1].spec == job


@pytest.mark.parametrize("result", [None, "text", [1]])
def test_a_job_without_a_result_is_still_done(world: PyinfraWorld, result: Any) -> None:
    assert run(world, {"state": "done", "result": result}) == {}


def test_a_failed_job_is_told_in_its_own_words(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    error = refusal("it is damaged", "two wrong files", "report it", "a.safetensors")["error"]
    status = {"state": "failed", "error": error, "log_tail": ["not shown"]}
    assert run(world, RUNNING, status) is None
    for part in ("model: it is damaged", "two wrong files", "report it", "| a.safetensors"):
        assert part in caplog.text
    assert "not shown" not in caplog.text


def test_a_failure_without_lines_shows_the_logs_last_thirty(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f"line {number:03}" for number in range(40)]
    status = {"state": "failed", "error": {"what": "w"}, "log_tail": lines}
    assert run(world, status) is None
    assert "line 009" not in caplog.text
    assert "line 010" in caplog.text
    assert "line 039" in caplog.text


def test_a_job_that_ended_without_a_word_names_its_unit(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(world, {"state": "absent"}) is None
    assert "ended as 'absent' without saying why" in caplog.text
    assert "journalctl -u llm-pull@Qwen--Qwen3-32B--master" in caplog.text


def test_a_job_that_runs_already_is_joined_and_said_so(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    unit = "llm-pull@Qwen--Qwen3-32B--master.service"
    world.script.says("job start", {"state": "attached", "unit": unit, "run": "a"})
    assert run(world, RUNNING, {"state": "done", "result": {"a": 1}}) == {"a": 1}
    assert f"model: joins {unit}, which runs already" in caplog.text


def test_a_refused_start_is_told_and_nothing_is_watched(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.script.says("job start", refusal("pull is running with another request"))
    assert run(world, RUNNING) is None
    assert "running with another request" in caplog.text
    assert world.script.commands() == ["job start"]


def test_a_host_that_reboots_meanwhile_is_waited_for(world: PyinfraWorld) -> None:
    gone = SSHException("gone")
    assert run(world, RUNNING, gone, gone, RUNNING, {"state": "done", "result": {}}) == {}
    assert world.connects == ["gpu01", "gpu01"]


def test_a_host_that_stays_away_keeps_its_job(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(world, RUNNING, SSHException("gone")) is None
    assert "llm-pull@Qwen--Qwen3-32B--master goes on by itself" in caplog.text
    assert "it joins the job" in caplog.text
    # A status, then one attempt in five seconds for five minutes.
    assert len(world.script.sent) == 2 + 61


def test_progress_is_printed_at_each_phase_and_every_ten_seconds(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    verify = {"state": "running", "progress": {"phase": "verify"}}
    renewals: list[int] = []
    # Polls at 0, 0.5, 1.5, 3.5, 6.5, 11.5 and then every 5 seconds.
    statuses = [RUNNING] * 7 + [verify] + [{"state": "done"}]
    assert run(world, *statuses, renewals=renewals) == {}
    printed = [record.getMessage() for record in caplog.records]
    assert [text.split("model: ")[1] for text in printed] == [
        "download, 1 of 2 (50%)",
        "download, 1 of 2 (50%)",
        "verify",
    ]
    # The lease lives as long as the job does.
    assert len(renewals) == 3


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        ({}, "starting"),
        ({"phase": "queued", "done": 0, "total": None, "unit": "", "rate": None}, "queued"),
        (
            {"phase": "download", "done": 120e9, "total": 240e9, "unit": "bytes", "rate": 50e6},
            "download, 120.0 GB of 240.0 GB (50%), 50.0 MB/s, about 40 min 0 s left",
        ),
        (
            {"phase": "download", "done": 0, "total": 235e9, "unit": "bytes", "rate": 8e6,
             "message": "118 of 118 files"},
            "download, 0 B of 235.0 GB (0%), 8.0 MB/s, about 8 h 9 min left, 118 of 118 files",
        ),
        (
            {"phase": "download", "done": 5e9, "total": 10e9, "unit": "bytes", "rate": None,
             "files": [{"path": f"s{size}", "done": size * 1e8, "total": size * 1e9}
                       for size in (1, 2, 3, 4, 5)] + [{"path": "empty", "done": 0, "total": 0}]},
            "download, 5.0 GB of 10.0 GB (50%), now s5 10%, s4 10%, s3 10%, s2 10% and 2 more",
        ),
        ({"phase": "verify", "done": 900, "total": 900, "unit": "bytes", "rate": 1500},
         "verify, 900 B of 900 B (100%), 1.5 kB/s"),
        ({"phase": "install", "done": 40, "total": 160, "unit": "packages", "rate": 2},
         "install, 40 packages of 160 packages (25%), 2 packages/s, about 1 min 0 s left"),
        # Seconds pass at one a second, which is no rate.
        ({"phase": "draining", "done": 30.0, "total": 120, "unit": "s", "rate": 1.0,
          "message": "requests running or waiting: 3"},
         "draining, 30 s of 2 min 0 s (25%), requests running or waiting: 3"),
        ({"phase": "starting", "done": 61.4, "total": None, "unit": "s", "rate": 1.0,
          "message": "it has not opened its socket yet"},
         "starting, 1 min 1 s, it has not opened its socket yet"),
        ({"phase": "starting", "done": 0, "total": None, "unit": "s", "rate": None}, "starting"),
        # Nothing moves, or the numbers are none.
        ({"phase": "download", "done": 1, "total": 2, "unit": "bytes", "rate": 0},
         "download, 1 B of 2 B (50%)"),
        ({"phase": "download", "done": "?", "total": 2, "rate": "fast"}, "download"),
    ],
)  # fmt: skip
def test_a_line_of_progress(progress: dict[str, Any], line: str) -> None:
    assert jobs.describe_progress(progress) == line
