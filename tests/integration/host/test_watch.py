"""The watch with a fake engine in a real process: it kills what hangs, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipapp
from typing import TYPE_CHECKING

import pytest
from fleet_host import engine, golive, health, release, stamp, watch
from fleet_host.errors import HostError
from fleet_host.status import Progress
from fleet_host.watch_state import STARTS, State

from pyinfra_deploy.deploys.artefacts import units_of
from pyinfra_deploy.planning import engine_care, host_care
from pyinfra_deploy.settings.schema import Settings
from tests.fakes.engine_host import FILES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fakes.engine_host import FakeHost

CONFIGURATION = watch.Configuration(
    interval_seconds=0.05, answer_seconds=0.15, start_timeout_seconds=None
)
KILLED = "kill --signal=SIGKILL llm-engine@main.service"


@pytest.fixture
def serving(host: FakeHost) -> FakeHost:
    release.stage(host.release_request("r1"))
    golive.run(host.golive_spec("r1"), Progress(None))
    (host.unit / "tokens").write_text("10")
    return host


def looks(count: int, state: State | None = None) -> State:
    state = state or State()
    for _ in range(count):
        state = watch.look("main", CONFIGURATION, state)
    return state


def events_of(host: FakeHost) -> list[dict[str, object]]:
    lines = (host.llm_root / "state/events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_an_engine_that_answers_is_let_be(serving: FakeHost) -> None:
    state = looks(4)
    assert state.answered
    assert KILLED not in serving.calls()


def test_an_engine_that_hangs_is_killed_and_recorded(serving: FakeHost) -> None:
    state = looks(1)
    (serving.unit / "stuck").touch()
    state = looks(2, state)
    assert KILLED not in serving.calls()
    looks(1, state)
    assert serving.calls()[-1] == KILLED
    event = events_of(serving)[-1]
    assert (event["what"], event["who"], event["release"]) == ("engine hung", "watch", "r1")
    assert "timed out" in str(event["last"])


def test_an_engine_that_is_only_busy_is_let_be(serving: FakeHost) -> None:
    state = looks(1)
    (serving.unit / "stuck").touch()
    for made in range(8):
        (serving.unit / "tokens").write_text(str(made))
        state = looks(1, state)
    assert KILLED not in serving.calls()
    assert "busy" in state.said


def test_an_engine_that_loads_is_waited_for_until_its_time_is_over(serving: FakeHost) -> None:
    """Its unit was just started and has answered nothing yet, unlike one whose time is over."""
    (serving.unit / "stuck").touch()
    looks(6)
    assert KILLED in serving.calls()  # active since the machine's boot, by the fake's clock
    calls = len(serving.calls())
    patient = watch.Configuration(0.05, 0.15, start_timeout_seconds=10.0**9)
    state = State()
    for _ in range(6):
        state = watch.look("main", patient, state)
    assert len(serving.calls()) == calls


@pytest.mark.parametrize("sign", ["drained", "go-live runs"])
def test_what_drains_or_is_switched_is_left_alone(serving: FakeHost, sign: str) -> None:
    state = looks(1)
    (serving.unit / "stuck").touch()
    if sign == "drained":
        engine.raise_drain_flag("main", "alice", "maintenance")
    else:
        (serving.unit / "golive-state").write_text("activating\n")
    looks(6, state)
    assert KILLED not in serving.calls()


@pytest.mark.parametrize("phase", ["draining", "proving", "switching", "starting", "reverting"])
def test_after_a_go_live_that_was_cut_off_a_hang_is_seen(serving: FakeHost, phase: str) -> None:
    """Its note stays as it is until somebody deploys, which may be weeks."""
    document = {**serving.golive_record(), "phase": phase}
    (serving.home / "golive.json").write_text(json.dumps(document))
    state = looks(1)
    (serving.unit / "stuck").touch()
    looks(3, state)
    assert serving.calls()[-1] == KILLED


def test_an_engine_that_is_down_is_systemd_s_matter(serving: FakeHost) -> None:
    os.kill(int((serving.unit / "pid").read_text()), signal.SIGKILL)
    before = serving.calls()
    looks(6)
    assert serving.calls() == before


@pytest.mark.parametrize("deaf", [False, True])
def test_an_engine_that_is_given_up_ends_failed(
    serving: FakeHost, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    """Not stopped, which the unit's state would show as if somebody had wanted it; that only when
    it does not die."""
    monkeypatch.setattr(watch, "GIVE_UP_SECONDS", 0.5 if deaf else 30.0)
    if deaf:
        (serving.unit / "deaf").touch()
    (serving.unit / "stuck").touch()
    looks(1, State(invocation="of the start before", starts=STARTS))
    calls = serving.calls()
    given_up = calls.index(f"kill --signal={watch.GIVE_UP_SIGNAL} llm-engine@main.service")
    assert calls[given_up + 1 :] == (["stop llm-engine@main.service"] if deaf else [])
    if not deaf:
        assert engine.unit_state("llm-engine@main.service")["ActiveState"] == "failed"
    event = events_of(serving)[-1]
    assert (event["what"], event["starts"]) == ("engine given up", STARTS)


def test_the_unit_does_not_restart_what_was_given_up() -> None:
    unit = units_of(Settings.model_validate({}))["llm-engine@.service"].content
    (line,) = [one for one in unit.splitlines() if one.startswith("RestartPreventExitStatus=")]
    assert watch.GIVE_UP_SIGNAL in line.partition("=")[2].split()


@pytest.mark.parametrize(("behaviour", "alive"), [("empty", True), ("sick", False)])
def test_an_empty_token_shows_life_and_an_error_of_the_server_does_not(
    serving: FakeHost, behaviour: str, alive: bool
) -> None:
    """The real vLLM's one token is now and then half of a character."""
    (serving.home / "releases/r1/config.yaml").write_text(json.dumps({"behave": behaviour}))
    health.restart("llm-engine@main.service")
    deadline = time.monotonic() + 30
    while not engine.socket_path("main").exists():
        assert time.monotonic() < deadline
    assert looks(1).answered == alive


def test_a_refusal_shows_life(serving: FakeHost) -> None:
    """A model's name that was changed by hand is no hang."""
    path = serving.home / "releases/r1/release.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "served_model_name": "other"}))
    assert looks(3).answered


def configured(host: FakeHost) -> None:
    document = {"interval_seconds": 0.05, "answer_seconds": 5, "start_timeout_seconds": None}
    (host.root / "etc/llm").mkdir(parents=True)
    (host.root / "etc/llm/watch-main.json").write_text(json.dumps(document))
    (host.root / "run/llm-watch-main").mkdir()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_runs_tells_and_ends_when_told(serving: FakeHost) -> None:
    with pytest.raises(HostError, match="is not watched"):
        watch.run({"engine": "main"})
    configured(serving)
    process = subprocess.Popen([sys.executable, "-m", "fleet_host", "watch", "run", "main"])
    told = serving.root / "run/llm-watch-main/state.json"
    wait_for(lambda: told.exists() and json.loads(told.read_text())["answered"])
    assert (serving.root / "run/llm-watch-main/started").exists()
    process.terminate()
    assert process.wait(timeout=30) == 0


def test_a_new_program_is_gone_on_with_in_the_same_process(
    serving: FakeHost, tmp_path: Path
) -> None:
    """As a deploy does it: a zipapp, renamed over the one that runs."""
    configured(serving)
    program = serving.llm_root / "bin/fleet-host"
    program.parent.mkdir()
    zipapp.create_archive(
        FILES, program, interpreter=sys.executable, main="fleet_host.__main__:main"
    )
    process = subprocess.Popen(
        [program, "watch", "run", "main"], env={**os.environ, "PYTHONPATH": ""}
    )
    started = serving.root / "run/llm-watch-main/started"
    wait_for(started.exists)
    new = program.with_name("new")
    shutil.copy(program, new)
    started.unlink()
    new.replace(program)
    wait_for(started.exists)
    assert process.poll() is None
    process.terminate()
    assert process.wait(timeout=30) == 0


def test_control_side_and_host_agree_on_configuration_and_stamp(host: FakeHost) -> None:
    """Were they different, every deploy would start the watch anew."""
    settings = Settings.model_validate({"engine": {"watch": {"interval_seconds": 7}}})
    text = engine_care.configurations(settings)[engine_care.WATCH]
    assert text is not None
    unit = units_of(settings)["llm-watch@.service"].content
    for path, content in (
        (engine_care.configuration_path(engine_care.WATCH, "main"), text),
        ("/etc/systemd/system/llm-watch@.service", unit),
        ("/run/llm-watch-main/x", ""),
    ):
        file = host.root / path.removeprefix("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    assert watch.read_configuration("main") == watch.Configuration(7, 60, None)
    stamp.write("llm-watch-main", watch.configuration_path("main"), "llm-watch@")
    written = (host.root / "run/llm-watch-main/started").read_text()
    assert written == host_care.started_with(unit, text)
