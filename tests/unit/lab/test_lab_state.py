import multiprocessing
import os
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from lab import state as lab_state
from lab.durable import write_atomic
from lab.errors import LabError
from lab.plan import Host
from lab.state import State, SysctlChange, exclusive, load_state, parse_state, render_state

STATE = State(
    hosts={"gpu1": Host("gpu1", "bookworm", ("lab", "gpu"), ("layers/a", "bases/b"))},
    sysctls={"net.ipv4.ip_forward": SysctlChange("0", "1")},
    made=["/run/netns"],
)


def test_state_survives_a_round_trip() -> None:
    assert parse_state(render_state(STATE), Path("state.json")) == STATE


def test_no_file_is_an_empty_state(tmp_path: Path) -> None:
    assert load_state(tmp_path / "state.json") == State()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 1, "hosts": {"gpu1": {}}}'])
def test_a_damaged_state_is_named_and_not_guessed(text: str) -> None:
    with pytest.raises(LabError, match=r"/var/x/state.json cannot be read") as caught:
        parse_state(text, Path("/var/x/state.json"))
    assert "lab down" in caught.value.fix


def test_newer_state_is_refused() -> None:
    with pytest.raises(LabError, match="has schema 2, this lab knows 1"):
        parse_state('{"schema": 2}', Path("state.json"))


def test_atomic_write_replaces_a_symlink_and_not_its_target(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("machine's own")
    link = tmp_path / "host" / "resolv.conf"
    link.parent.mkdir()
    link.symlink_to(outside)
    write_atomic(link, "host's", 0o600)
    assert outside.read_text() == "machine's own"
    assert link.read_text() == "host's"
    assert not link.is_symlink()
    assert link.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in link.parent.iterdir()] == ["resolv.conf"]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")

    def fail(_descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def _hold(lock: Path, entered: Event, log: Path) -> None:
    pytest.MonkeyPatch().setattr(lab_state, "LOCK_FILE", lock)
    with exclusive("lab up"):
        entered.set()
        with log.open("a") as file:
            file.write("first begins\n")
        time.sleep(0.3)
        with log.open("a") as file:
            file.write("first ends\n")


def test_two_commands_do_not_interleave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock, log = tmp_path / "lock", tmp_path / "log"
    monkeypatch.setattr(lab_state, "LOCK_FILE", lock)
    context = multiprocessing.get_context("fork")
    entered = context.Event()
    process = context.Process(target=_hold, args=(lock, entered, log))
    process.start()
    assert entered.wait(5)
    with exclusive("lab down"), log.open("a") as file:
        file.write("second\n")
    process.join()
    assert log.read_text().splitlines() == ["first begins", "first ends", "second"]
    assert "waiting for another lab command" in capsys.readouterr().err
