"""The host program comes with the lease: the very script, run by a shell here."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.operations import install, lease, packing, program
from pyinfra_deploy.operations.program import HostRefused
from tests.fakes.pyinfra_host import ROOT, refusal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.pyinfra_host import PyinfraWorld

OURS = {
    "owner": "me@here", "machine": "here:1:2", "run": "ours", "pid": 1, "pid_start": 1,
    "ttl_seconds": 60, "generation_seen": 0,
}  # fmt: skip
THEIRS = OURS | {"owner": "alice@desk", "machine": "desk:1:2", "run": "theirs"}
OLD = "the program of another commit"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An llm_root whose program is another one."""
    (tmp_path / "llm/bin").mkdir(parents=True)
    (tmp_path / "llm/bin/fleet-host").write_text(OLD)
    return tmp_path / "llm"


def take(
    root: Path, spec: dict[str, Any], *, stdin: str | None = None, path: str = ""
) -> tuple[int, dict[str, Any]]:
    program = packing.host_program()
    line = install.command(str(root), program, "lease acquire").get_raw_value()
    done = subprocess.run(
        ["sh", "-c", line],
        input=install.standard_input(program, spec) if stdin is None else stdin,
        env={**os.environ, "PATH": path + os.environ["PATH"]},
        text=True,
        capture_output=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def in_bin(root: Path) -> list[str]:
    return [path.name for path in (root / "bin").iterdir()]


def assert_untouched(root: Path) -> None:
    assert (root / "bin/fleet-host").read_text() == OLD
    assert in_bin(root) == ["fleet-host"]


def test_the_program_is_in_place_once_the_lease_is_held(tmp_path: Path) -> None:
    root = tmp_path / "bare host"
    code, answer = take(root, OURS)
    assert (code, answer["lease"]["run"]) == (0, "ours")
    installed = root / "bin/fleet-host"
    assert installed.read_bytes() == packing.host_program()
    assert installed.stat().st_mode & 0o777 == 0o755
    assert in_bin(root) == ["fleet-host"]


def test_another_runs_program_stays_while_it_holds_the_lease(root: Path) -> None:
    take(root, THEIRS)
    (root / "bin/fleet-host").write_text(OLD)
    code, answer = take(root, OURS | {"generation_seen": 1})
    assert (code, answer["error"]["what"]) == (1, "another run is at work on this host")
    assert_untouched(root)
    assert json.loads((root / "state/lease.json").read_text())["run"] == "theirs"


def test_a_plan_from_before_another_run_replaces_nothing(root: Path) -> None:
    code, answer = take(root, OURS | {"generation_seen": 7})
    assert (code, answer["error"]["what"]) == (1, "the host has changed since it was planned")
    assert_untouched(root)
    assert not (root / "state/lease.json").exists()


@pytest.mark.parametrize("length", [0, 3, 4, 4000])
def test_a_cut_program_replaces_nothing(root: Path, length: int) -> None:
    """A broken connection ends stdin, in the middle of a group of four or between two."""
    whole = install.standard_input(packing.host_program(), OURS)
    code, answer = take(root, OURS, stdin=whole[:length])
    assert (code, answer["error"]["what"]) == (
        1,
        f"the host program could not be written to {root}/bin",
    )
    assert answer["error"]["why"]
    assert_untouched(root)


def test_a_program_without_its_command_replaces_nothing(root: Path) -> None:
    """Cut just behind the program."""
    sent = base64.b64encode(packing.host_program()).decode() + "\n"
    code, answer = take(root, OURS, stdin=sent)
    assert code != 0
    assert answer["error"]["what"]
    assert_untouched(root)


def test_a_full_disk_is_said(root: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "base64").write_text(
        "#!/bin/sh\nhead -c 9; echo 'base64: No space left on \"disk\"' >&2; exit 1\n"
    )
    (full / "base64").chmod(0o755)
    code, answer = take(root, OURS, path=f"{full}:")
    assert code == 1
    assert answer["error"]["why"].strip() == "base64: No space left on disk"
    assert "df -h" in answer["error"]["fix"]
    assert_untouched(root)


def test_what_a_power_cut_has_left_goes_with_the_next_run(root: Path) -> None:
    left, just_now = root / "bin/fleet-host.new.1", root / "bin/fleet-host.new.2"
    for path in (left, just_now):
        path.write_text("half")
    os.utime(left, (0, 0))
    take(root, OURS)
    assert sorted(in_bin(root)) == ["fleet-host", "fleet-host.new.2"]


def test_the_step_sends_both_on_stdin(world: PyinfraWorld) -> None:
    acquire: dict[str, Any] = {"llm_root": ROOT, "generation_seen": 4, "lease_seen": None}
    assert lease.acquire(world.state, world.host(), installing=b"newer", **acquire)
    (sent,) = world.script.sent
    first, second = (sent.stdin or "").splitlines()
    assert base64.b64decode(first) == b"newer"
    assert json.loads(second)["generation_seen"] == 4
    assert len(sent.command) < 1500


def test_a_refusal_of_the_step_is_the_programs(world: PyinfraWorld) -> None:
    line = install.command(ROOT, b"newer", "lease acquire").get_raw_value()
    world.script.says(line, refusal("another run is at work", "alice", "wait for it"))
    with pytest.raises(HostRefused, match="another run is at work"):
        program.call(
            world.state, world.host(), "lease acquire", OURS, llm_root=ROOT, installing=b"newer"
        )
