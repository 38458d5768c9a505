"""What runbooks do on a host: stop and start an engine, reset GPUs, a new TLS key."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import (
    engine,
    events,
    golive,
    gpu_reset,
    programs,
    release,
    service,
    service_by_hand,
    snapshot,
    systemctl,
    tls,
)
from fleet_host.errors import HostError, SpecError
from fleet_host.status import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.engine_host import FakeHost

BY = {"engine": "main", "by": "ada"}
STOP = {**BY, "reason": "fan 3", "now": False}


def whats() -> list[str]:
    return [event["what"] for event in events.tail({"lines": 99})["events"]]


def running(host: FakeHost) -> None:
    release.stage(host.release_request("r1"))
    engine.link("main", "current", "r1")
    systemctl.call(["start", "llm-engine@main.service"])
    wait_for_answer()


def wait_for_answer() -> dict[str, Any]:
    end = time.monotonic() + 60
    while not (found := service_by_hand.answers(BY))["answers"]:
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def test_an_engine_is_stopped_drained_and_started(host: FakeHost) -> None:
    running(host)
    answer = service_by_hand.stop(STOP)
    assert answer["changed"]
    assert answer["drain"]["by"] == "ada"
    seen = service_by_hand.answers(BY)
    assert (seen["answers"], seen["active"]) == (False, "inactive")
    assert service_by_hand.stop(STOP)["changed"] is False
    assert service_by_hand.start(BY) == {"changed": True}
    found = wait_for_answer()
    assert (found["drain"]["reason"], found["model"]) == ("fan 3", "m")
    assert service_by_hand.start(BY) == {"changed": False}
    service.undrain(BY)
    assert service_by_hand.answers(BY)["drain"] is None
    assert whats()[-4:] == ["drained", "engine stopped", "engine started by hand", "undrained"]


def test_a_stopped_engine_is_started_by_hand_and_by_nothing_else(host: FakeHost) -> None:
    running(host)
    release.stage(host.release_request("r2"))
    service_by_hand.stop(STOP)
    assert snapshot.engine_state(str(host.llm_root), "main")["stopped"]["who"] == "ada"
    before = host.calls()
    with pytest.raises(HostError, match="stopped by hand") as caught:
        golive.run(host.golive_spec("r2"), Progress(None))
    assert "ada stopped it at" in caught.value.why
    assert "put-in" in caught.value.fix
    with pytest.raises(HostError, match="stopped by hand"):
        service.undrain(BY)
    assert host.calls() == before
    service_by_hand.start(BY)
    wait_for_answer()
    service.undrain(BY)
    assert golive.run(host.golive_spec("r2"), Progress(None))["release"] == "r2"


def test_a_note_of_a_stop_that_cannot_be_read_keeps_it_down(host: FakeHost) -> None:
    running(host)
    (host.home / "stopped.json").write_text("{")
    with pytest.raises(HostError, match="somebody stopped it at an unknown time"):
        golive.run(host.golive_spec("r1"), Progress(None))
    assert service_by_hand.start(BY) == {"changed": True}
    assert service_by_hand.start(BY) == {"changed": False}


def test_an_operators_drain_is_not_lifted_while_a_release_is_judged(host: FakeHost) -> None:
    """The flag may be all that keeps clients from it: the go-live raises none beside another's."""
    running(host)
    service.drain({**BY, "reason": "fan 3"})
    (host.unit / "golive-state").write_text("active")
    with pytest.raises(HostError, match="is being switched"):
        service.undrain(BY)
    assert host.flag.exists()
    (host.unit / "golive-state").write_text("inactive")
    assert service.undrain(BY)["changed"]


def test_an_engine_is_killed_at_once(host: FakeHost) -> None:
    running(host)
    assert service_by_hand.stop({**STOP, "now": True})["changed"]
    assert service_by_hand.answers(BY)["active"] in ("inactive", "failed")


def test_a_host_without_a_release_says_so(host: FakeHost) -> None:
    found = service_by_hand.answers(BY)
    assert (found["why"], found["model"]) == ("it has no release", None)


def fake_proc(tmp_path: Path, *processes: tuple[int, str, str, str]) -> Path:
    """(pid, its name, a file that it has open, its cgroup)"""
    for pid, name, link, group in processes:
        directory = tmp_path / "proc" / str(pid)
        (directory / "fd").mkdir(parents=True)
        (directory / "fd/3").symlink_to(link)
        (directory / "comm").write_text(f"{name}\n")
        (directory / "cgroup").write_text(f"0::/system.slice/{group}\n")
    return tmp_path / "proc"


def test_which_processes_have_a_gpu_open(tmp_path: Path) -> None:
    proc = fake_proc(
        tmp_path,
        (9, "python3", "/dev/nvidia0", "user.slice"),
        (10, "python3", "/dev/nvidia-uvm", "llm-engine@main.service"),
        (11, "bash", "/dev/null", "user.slice"),
        (12, "nvidia-persiste", "/dev/nvidiactl", "nvidia-persistenced.service"),
        (13, "x", "/dev/nvidia-caps/nvidia-cap1", "user.slice"),
    )
    assert gpu_reset.open_by(proc) == [
        {"pid": 9, "name": "python3"},
        {"pid": 10, "name": "python3"},
    ]


@pytest.fixture
def nvidia(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What nvidia-smi was asked; no process has a GPU open."""
    asked: list[list[str]] = []

    def output_of(argv: list[str], seconds: float, fixes: programs.Fixes, shown: str = "") -> str:
        if argv[0] != "nvidia-smi":
            return real(argv, seconds, fixes, shown)
        asked.append(argv)
        return "GPU 0: NVIDIA L20\nGPU 1: NVIDIA L20\n"

    real = programs.output_of
    monkeypatch.setattr(programs, "output_of", output_of)
    monkeypatch.setattr(gpu_reset, "open_by", lambda _proc: [])
    monkeypatch.setattr(gpu_reset, "KEEPERS", ())
    return asked


def test_gpus_are_reset_only_with_nothing_on_them(
    host: FakeHost, nvidia: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    running(host)
    wish = {**BY, "gpus": [0, 1]}
    with pytest.raises(HostError, match="takes requests"):
        gpu_reset.reset(wish)
    engine.raise_drain_flag("main", engine.DRAINED_BY_GO_LIVE, "a go-live")
    with pytest.raises(HostError, match="takes requests"):
        gpu_reset.reset(wish)
    service.drain({**BY, "reason": "x"})
    with pytest.raises(HostError, match="engine runs"):
        gpu_reset.reset(wish)
    service_by_hand.stop(STOP)
    with monkeypatch.context() as patch:
        patch.setattr(gpu_reset, "open_by", lambda _proc: [{"pid": 9, "name": "python3"}])
        with pytest.raises(HostError, match="still open") as caught:
            gpu_reset.reset(wish)
        assert "process 9 (python3)" in caught.value.why
    assert nvidia == []
    assert gpu_reset.reset(wish)["reset"] == [0, 1]
    assert nvidia[0] == ["nvidia-smi", "--gpu-reset", "-i", "0,1"]
    assert whats()[-1] == "GPUs reset"


def test_cards_are_counted_without_asking_one(tmp_path: Path) -> None:
    for place in ("0000:41:00.0", "0000:01:00.0"):
        (tmp_path / "driver/nvidia/gpus" / place).mkdir(parents=True)
    assert gpu_reset.known_to_driver(tmp_path) == ["GPU 0: 0000:01:00.0", "GPU 1: 0000:41:00.0"]
    assert gpu_reset.known_to_driver(tmp_path / "none") == []


class KilledError(BaseException):
    """As SIGKILL: nothing runs after it, also no `finally` of ours."""


def test_what_a_killed_reset_has_stopped_is_started_by_the_next_start(
    host: FakeHost, nvidia: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    running(host)
    service.drain({**BY, "reason": "x"})
    service_by_hand.stop(STOP)
    called: list[list[str]] = []
    call = systemctl.call

    def told(arguments: list[str], *more: Any) -> str:
        if arguments[-1] not in gpu_reset.KEEPERS:
            return call(arguments, *more)
        called.append(arguments)
        return ""

    def killed(_proc: Path) -> list[dict[str, Any]]:
        raise KilledError

    monkeypatch.setattr(systemctl, "call", told)
    monkeypatch.setattr(gpu_reset, "KEEPERS", ("llm-fans.service", "llm-persistence.service"))
    runs = gpu_reset._runs
    monkeypatch.setattr(gpu_reset, "_runs", lambda unit: unit in gpu_reset.KEEPERS or runs(unit))
    with monkeypatch.context() as patch:
        patch.setattr(gpu_reset, "open_by", killed)
        patch.setattr(gpu_reset, "start_stopped", list)
        with pytest.raises(KilledError):
            gpu_reset.reset({**BY, "gpus": [0]})
    assert [one[0] for one in called] == ["stop", "stop"]
    service_by_hand.start(BY)
    assert called[2:] == [
        ["start", "--no-block", "llm-persistence.service"],
        ["start", "--no-block", "llm-fans.service"],
    ]
    assert gpu_reset.start_stopped() == []


@pytest.mark.parametrize("gpus", [[], ["0"], "0", [True], None])
def test_gpus_are_numbers(host: FakeHost, gpus: Any) -> None:
    with pytest.raises(SpecError, match="'gpus'"):
        gpu_reset.reset({**BY, "gpus": gpus})


def self_signed(key: Path, place: Path) -> str:
    done = subprocess.run(
        ["openssl", "req", "-x509", "-new", "-key", str(key), "-subj", "/CN=x", "-days", "9"],
        capture_output=True, text=True, check=True, cwd=place,
    )  # fmt: skip
    return done.stdout


def test_a_new_tls_key_takes_its_place_with_its_certificate(host: FakeHost, tmp_path: Path) -> None:
    names = {"names": ["llm.example.com"], "addresses": []}
    tls.request(names)
    place = tls.directory()
    former = (place / "server.key").read_text()
    tls.install({"certificate_chain": self_signed(place / "server.key", tmp_path)})
    assert tls.request({**names, "new_key": True})["key_created"]
    following = (place / "server.key.next").read_text()
    # A host that dies here has a pair that fits, and another request goes on with the same key.
    assert (place / "server.key").read_text() == former
    assert tls.request({**names, "new_key": True})["key_created"] is False
    tls.install({"certificate_chain": self_signed(place / "server.key.next", tmp_path)})
    assert (place / "server.key").read_text() == following != former
    assert (place / "server.key").stat().st_mode & 0o777 == 0o600
    assert not (place / "server.key.next").exists()
    tls.install({"certificate_chain": self_signed(place / "server.key", tmp_path)})
    assert whats().count("TLS key replaced") == 1


def test_the_commands_are_there() -> None:
    from fleet_host.__main__ import COMMANDS

    for command in ("service stop", "service start", "service answers", "gpu holders", "gpu reset"):
        module, name = COMMANDS[command].split(":")
        __import__(f"fleet_host.{module}")
        assert callable(getattr(sys.modules[f"fleet_host.{module}"], name))
