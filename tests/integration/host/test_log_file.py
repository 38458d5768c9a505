"""The engine's log as a file: bounded, complete over restarts, from a fake journal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from fleet_host import log_file

from tests.fakes.engine_host import FILES, put_program

if TYPE_CHECKING:
    from pathlib import Path

# A journal of lines "N text" in $JOURNAL, whose cursors are the numbers.
JOURNALCTL = r"""
after=0
for word; do case $word in
    --after-cursor=*) after=${word#--after-cursor=} ;;
    --lines=0) after=$(wc -l < "$JOURNAL") ;;
esac; done
echo "$*" >> "$JOURNAL.calls"
exec tail -n "+$((after + 1))" -f "$JOURNAL"
"""
MACHINE = "5ca3f0d1c7f24b6e9d0a3a1b8e7c6f52"


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "journal"
    path.touch()
    put_program(tmp_path / "bin", "journalctl", JOURNALCTL)
    for name in ("etc/llm", "run/llm-log-main", "state/llm-log-main", "log/llm"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "etc/llm/log-main.json").write_text('{"max_mb": 1, "keep": 2}')
    (tmp_path / "etc/machine-id").write_text(f"{MACHINE}\n")
    monkeypatch.setenv("JOURNAL", str(path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(FILES))
    for root in ("ETC", "RUN", "STATE", "LOG"):
        monkeypatch.setenv(f"FLEET_{root}_ROOT", str(tmp_path / root.lower()))
    return path


def say(journal: Path, *texts: object) -> None:
    count = len(journal.read_text().splitlines())
    with journal.open("a") as file:
        for number, text in enumerate(texts, start=count + 1):
            entry = {"__CURSOR": str(number), "__REALTIME_TIMESTAMP": "1764500000123456"}
            file.write(json.dumps({**entry, "MESSAGE": text}) + "\n")


def started() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "fleet_host", "engine", "log", "main"])


def wait_for(path: Path, text: str) -> str:
    deadline = time.monotonic() + 30
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, f"{text} did not come"
        time.sleep(0.02)
    return path.read_text()


def test_lines_arrive_with_their_time_and_none_is_lost_over_a_restart(journal: Path) -> None:
    file = log_file.log_path("main")
    say(journal, "before it was wanted")
    process = started()
    calls = journal.with_name("journal.calls")
    called = wait_for(calls, "--lines=0").split()
    assert {"--merge", "--unit=llm-engine@main.service", f"_MACHINE_ID={MACHINE}"} < set(called)
    say(journal, "one", list(b"tw\xffo"))
    text = wait_for(file, "tw")
    assert text == "2025-11-30T10:53:20.123Z one\n2025-11-30T10:53:20.123Z tw\ufffdo\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    say(journal, "while nobody followed")
    process = started()
    wait_for(file, "while nobody followed")
    assert file.read_text().count("one\n") == 1
    process.terminate()
    process.wait(timeout=30)


def test_a_journal_that_ends_is_a_failure_for_systemd_to_mend(journal: Path) -> None:
    put_program(journal.parent / "bin", "journalctl", "echo 'no journal' >&2; exit 1\n")
    assert started().wait(timeout=30) == 1


def test_it_never_takes_more_than_was_allowed(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    file = log_file.RotatedFile(path, full_bytes=1000, keep=2)
    lines = [f"{number:04d} {'x' * 94}\n".encode() for number in range(100)]
    for line in lines:
        file.write(line)
    found = {one.name: one.stat().st_size for one in tmp_path.iterdir()}
    assert found == {"main.log": 1000, "main.log.1": 1000, "main.log.2": 1000}
    kept = b"".join(one.read_bytes() for one in (file.numbered(2), file.numbered(1), path))
    assert kept == b"".join(lines[-30:])
    file.close()
    log_file.RotatedFile(path, full_bytes=1000, keep=1).close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["main.log", "main.log.1"]


def test_a_line_longer_than_a_file_is_written_all_the_same(tmp_path: Path) -> None:
    file = log_file.RotatedFile(tmp_path / "main.log", full_bytes=10, keep=1)
    file.write(b"x" * 50 + b"\n")
    file.write(b"short\n")
    file.close()
    assert (tmp_path / "main.log").read_bytes() == b"short\n"
    assert (tmp_path / "main.log.1").read_bytes() == b"x" * 50 + b"\n"
