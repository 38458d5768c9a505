"""Going live with a fake systemd and a fake engine: every failure ends with something serving."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import binding, engine, golive, release, unjudged
from fleet_host.errors import HostError
from fleet_host.status import Progress

from pyinfra_deploy.planning.engine_log import read_engine_log

if TYPE_CHECKING:
    from tests.fakes.engine_host import FakeHost

RUN_GOLIVE = (
    "import json, sys; from fleet_host import golive; from fleet_host.status import Progress; "
    "golive.run(json.load(sys.stdin), Progress(None))"
)


def stage(host: FakeHost, identity: str, **behaviour: Any) -> None:
    release.stage(host.release_request(identity, **behaviour))


def go(host: FakeHost, identity: str, **more: Any) -> dict[str, Any]:
    return golive.run(host.golive_spec(identity, **more), Progress(None))


def refused(host: FakeHost, identity: str, **more: Any) -> HostError:
    with pytest.raises(HostError) as caught:
        go(host, identity, **more)
    return caught.value


def started(host: FakeHost) -> str:
    return str(json.loads((host.run / "started.json").read_text())["release"])


def events_of(host: FakeHost) -> list[str]:
    path = host.llm_root / "state/events.jsonl"
    return [json.loads(line)["what"] for line in path.read_text().splitlines()]


def test_the_first_release_goes_live_and_comes_back_after_a_reboot(host: FakeHost) -> None:
    stage(host, "r1")
    result = go(host, "r1")
    assert (result["changed"], result["from"], result["answer"]) == (True, None, " four")
    assert (host.linked("current"), host.linked("previous")) == ("r1", None)
    assert host.golive_record()["phase"] == "done"
    assert (host.unit / "enabled").read_text().strip() == "enabled"
    assert "went live" in events_of(host)
    assert not host.flag.exists()


def test_the_same_again_changes_nothing_and_restarts_nothing(host: FakeHost) -> None:
    stage(host, "r1")
    go(host, "r1")
    before = host.calls()
    result = go(host, "r1")
    assert result["changed"] is False
    assert host.calls() == before


def test_an_upgrade_keeps_the_old_release_as_previous(host: FakeHost) -> None:
    stage(host, "r1")
    stage(host, "r2")
    go(host, "r1")
    result = go(host, "r2")
    assert (result["from"], result["drained"]) == ("r1", True)
    assert (host.linked("current"), host.linked("previous")) == ("r2", "r1")
    assert started(host) == "r2"


def test_a_new_binding_restarts_the_same_release(host: FakeHost) -> None:
    stage(host, "r1")
    go(host, "r1")
    binding.bind(host.bind("r1", "CUDA_VISIBLE_DEVICES=0\n"))
    assert go(host, "r1")["changed"] is True
    assert (host.linked("current"), host.linked("previous")) == ("r1", None)


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ({"behave": "die"}, "exit status 2"),
        ({"behave": "hang"}, "no new log line and no CPU work"),
        ({"behave": "greedy"}, "ended (exit-code"),
        ({"behave": "sick"}, "no new log line and no CPU work"),
        ({"behave": "empty"}, "empty text"),
        ({"serves": "other"}, "404"),
    ],
)
def test_a_bad_release_is_taken_back_and_the_old_one_serves(
    host: FakeHost, behaviour: dict[str, Any], said: str
) -> None:
    stage(host, "r1")
    stage(host, "r2", **behaviour)
    go(host, "r1")
    error = refused(host, "r2", stall_timeout_seconds=0.6)
    assert said in error.why
    assert "release r1 serves again" in error.what
    assert (host.linked("current"), host.linked("previous")) == ("r1", None)
    assert started(host) == "r1"
    assert host.golive_record()["phase"] == "reverted"
    assert not host.flag.exists()
    assert events_of(host)[-1] == "go-live reverted"


def test_the_log_of_a_dying_engine_is_in_the_error(host: FakeHost) -> None:
    stage(host, "r1", behave="die")
    error = refused(host, "r1")
    assert error.detail[0] == "vllm: error: unrecognized arguments: --nope"
    assert error.detail[-1] == "vllm: error: unrecognized arguments: --nope"
    assert "loading r1" in error.detail
    assert "argument that it does not know" in error.why


def test_a_first_release_that_fails_leaves_nothing_running_and_nothing_current(
    host: FakeHost,
) -> None:
    stage(host, "r1", behave="die")
    error = refused(host, "r1")
    assert "is stopped" in error.what
    assert host.linked("current") is None
    assert host.calls()[-2:] == [
        "stop llm-engine@main.service",
        "disable llm-engine@main.service",
    ]
    assert host.golive_record()["phase"] == "failed"


def test_when_the_old_release_does_not_come_back_both_causes_are_told(host: FakeHost) -> None:
    stage(host, "r1")
    stage(host, "r2", behave="die")
    go(host, "r1")
    (host.home / "releases/r1/config.yaml").write_text('{"behave": "die"}')
    error = refused(host, "r2")
    assert "serves nothing" in error.what
    assert "--- r1" in error.detail
    assert "--- r2" in error.detail
    assert not host.flag.exists()


def test_going_back_asks_the_old_release_by_its_own_name(host: FakeHost) -> None:
    stage(host, "r1", serves="old-name")
    stage(host, "r2", behave="die")
    go(host, "r1", probe={"model": "old-name"})
    assert "r1 serves again" in refused(host, "r2", probe={"model": "m"}).what


def test_a_crash_loop_is_recognised_at_once(host: FakeHost) -> None:
    stage(host, "r1", behave="hang")
    (host.unit / "restarts").write_text("1")
    assert "keeps restarting" in refused(host, "r1").why


def test_cpu_work_moves_the_deadline_but_not_for_ever(host: FakeHost) -> None:
    stage(host, "r1", load_seconds=0.5)
    (host.unit / "busy").write_text("1")
    assert go(host, "r1", stall_timeout_seconds=0.2)["changed"] is True
    stage(host, "r2", behave="hang")
    error = refused(host, "r2", stall_timeout_seconds=0.2, start_timeout_seconds=0.7)
    assert "start_timeout_seconds" in error.why


def test_a_busy_engine_is_drained_first(host: FakeHost) -> None:
    stage(host, "r1")
    stage(host, "r2")
    go(host, "r1")
    host.load.write_text("3.0")
    spec = json.dumps(host.golive_spec("r2", drain_seconds=20))
    child = subprocess.Popen([sys.executable, "-c", RUN_GOLIVE], stdin=subprocess.PIPE, text=True)
    assert child.stdin is not None
    child.stdin.write(spec)
    child.stdin.close()
    wait_for(host.flag.exists)
    time.sleep(0.2)
    assert host.linked("current") == "r1"
    assert json.loads(host.flag.read_text())["by"] == "go-live"
    host.load.write_text("0.0")
    assert child.wait(timeout=10) == 0
    assert host.linked("current") == "r2"
    assert not host.flag.exists()


def test_requests_that_never_end_do_not_hold_it_up_for_ever(host: FakeHost) -> None:
    stage(host, "r1")
    stage(host, "r2")
    go(host, "r1")
    host.load.write_text("1.0")
    assert go(host, "r2", drain_seconds=1)["drained"] is False


def test_an_operator_s_drain_flag_stays(host: FakeHost) -> None:
    stage(host, "r1")
    engine.raise_drain_flag("main", "alice", "changing a fan")
    go(host, "r1")
    assert json.loads(host.flag.read_text())["by"] == "alice"


def test_a_release_whose_model_lost_a_file_is_refused_before_anything_changes(
    host: FakeHost,
) -> None:
    stage(host, "r1")
    stage(host, "r2")
    go(host, "r1")
    (host.llm_root / "models/o--m/master/weights").write_text("1")
    before = host.calls()
    error = refused(host, "r2")
    assert "weights: 1 bytes, 2 expected" in error.detail
    assert host.calls() == before
    assert host.linked("current") == "r1"


def test_a_release_that_was_not_staged_is_refused(host: FakeHost) -> None:
    assert "not on this host" in refused(host, "nope").what


SAYS = [
    "INFO 11-30 08:00:00 [gpu_model_runner.py:3411] Model loading took 27.71 GiB",
    "INFO 11-30 08:00:09 [backends.py:1] Compiling a graph",
    "INFO 11-30 08:00:10 [gpu_worker.py:316] Available KV cache memory: 9.83 GiB",
    "INFO 11-30 08:00:11 [kv_cache_utils.py:849] GPU KV cache size: 219,328 tokens",
    "INFO 11-30 08:00:11 [kv_cache_utils.py:853] Maximum concurrency for 16,384 tokens per "
    "request: 13.39x",
]


def test_what_the_engine_says_of_its_memory_is_kept_for_plans(host: FakeHost) -> None:
    stage(host, "r1", says=SAYS)
    go(host, "r1")
    kept = json.loads((host.home / "start.json").read_text())
    assert kept["release"] == "r1"
    assert kept["lines"] == [SAYS[0], *SAYS[2:]]
    assert read_engine_log(kept["lines"]).available_bytes == pytest.approx(9.83 * 2**30)
    # The fake journal is one for all starts, unlike a real one's; this one says nothing.
    (host.unit / "log").unlink()
    stage(host, "r2")
    go(host, "r2")
    assert not (host.home / "start.json").exists()


def test_a_release_serves_also_when_nothing_of_its_memory_can_be_kept(host: FakeHost) -> None:
    (host.home / "start.json").mkdir(parents=True)
    stage(host, "r1", says=SAYS)
    assert go(host, "r1")["changed"]
    assert host.linked("current") == "r1"


def wait_for(condition: Any, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def killed_at(
    host: FakeHost, identity: str, phase: str, *, engine_up: bool = False, **more: Any
) -> None:
    """Run a go-live in a process of its own and kill -9 it once it is in a phase."""
    spec = json.dumps(host.golive_spec(identity, **more))
    child = subprocess.Popen(
        [sys.executable, "-c", RUN_GOLIVE], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    assert child.stdin is not None
    child.stdin.write(spec)
    child.stdin.close()

    def reached() -> bool:
        path = host.home / "golive.json"
        there = path.exists() and host.golive_record()["phase"] == phase
        return there and (phase != "draining" or host.flag.exists())

    wait_for(reached)
    if engine_up:
        wait_for(lambda: bool(engine.read_started("main")))
        wait_for(lambda: engine.unit_state("x")["ActiveState"] == "active")
    child.kill()
    child.wait()


@pytest.mark.parametrize("phase", ["draining", "starting"])
def test_a_killed_go_live_is_mended_by_the_next(host: FakeHost, phase: str) -> None:
    stage(host, "r1")
    stage(host, "r2", load_seconds=0.3)
    go(host, "r1")
    host.load.write_text("1.0" if phase == "draining" else "0.0")
    killed_at(host, "r2", phase, drain_seconds=20 if phase == "draining" else 1)
    assert host.golive_record()["from"] == "r1"
    assert host.flag.exists()  # kill -9 runs no cleanup; the unit's ExecStopPost does, and:
    host.load.write_text("0.0")
    result = go(host, "r2")
    assert (result["changed"], result["from"]) == (True, "r1")
    assert (host.linked("current"), host.linked("previous")) == ("r2", "r1")
    assert host.golive_record()["phase"] == "done"
    assert not host.flag.exists()


def test_killed_while_a_bad_release_starts_the_next_run_still_knows_the_good_one(
    host: FakeHost,
) -> None:
    stage(host, "r1")
    stage(host, "bad", behave="hang")
    stage(host, "r3", behave="die")
    go(host, "r1")
    killed_at(host, "bad", "starting")
    assert host.linked("current") == "bad"
    error = refused(host, "r3")
    assert "release r1 serves again" in error.what
    assert started(host) == "r1"


def test_killed_while_going_back_the_next_run_goes_back_too(host: FakeHost) -> None:
    stage(host, "r1", load_seconds=0.3)
    stage(host, "bad", behave="die")
    go(host, "r1")
    killed_at(host, "bad", "reverting")
    error = refused(host, "bad")
    assert "release r1 serves again" in error.what
    assert (host.linked("current"), started(host)) == ("r1", "r1")


@pytest.mark.parametrize("verb", ["reset-failed", "restart", "enable"])
def test_killed_at_any_call_to_systemd_the_next_run_ends_well(host: FakeHost, verb: str) -> None:
    stage(host, "r1")
    spec = json.dumps(host.golive_spec("r1"))
    done = subprocess.run(
        [sys.executable, "-c", RUN_GOLIVE],
        input=spec,
        text=True,
        capture_output=True,
        env={**os.environ, "FAKE_KILL_PARENT_AT": verb},
        check=False,
        timeout=20,
    )
    assert done.returncode == -signal.SIGKILL
    go(host, "r1")
    assert host.linked("current") == "r1"
    assert started(host) == "r1"
    assert (host.unit / "enabled").read_text().strip() == "enabled"
    assert host.golive_record()["phase"] == "done"


def test_after_an_interruption_a_loading_engine_is_waited_for_not_restarted(
    host: FakeHost,
) -> None:
    stage(host, "r1", load_seconds=0.6)
    killed_at(host, "r1", "starting", engine_up=True)
    restarts = host.calls().count("restart llm-engine@main.service")
    assert restarts == 1
    go(host, "r1")
    assert host.calls().count("restart llm-engine@main.service") == restarts


def test_undrain_lowers_only_the_go_live_s_flag(host: FakeHost) -> None:
    engine.raise_drain_flag("main", engine.DRAINED_BY_GO_LIVE, "x")
    assert unjudged.ended({"engine": "main"}) == {"lowered": True, "back_to": None}
    assert not host.flag.exists()
    engine.raise_drain_flag("main", "alice", "x")
    assert unjudged.ended({"engine": "main"}) == {"lowered": False, "back_to": None}
    assert host.flag.exists()


def test_the_unit_notes_what_it_starts(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INVOCATION_ID", "abc")
    with pytest.raises(HostError, match="no release to run"):
        engine.started({"engine": "main"})
    stage(host, "r1")
    (host.home / "current").symlink_to("releases/r1")
    binding.bind(host.bind("r1", "A=1\n"))
    host.run.mkdir()
    engine.started({"engine": "main"})
    assert engine.read_started("main") == {
        "release": "r1",
        "binding": engine.binding_digest("main", "r1"),
        "model_mended": None,
        "invocation": "abc",
    }
