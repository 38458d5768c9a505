"""Durable writes, and the order of their system calls: a power cut cannot be had in a test."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from fleet_host import durable
from fleet_host.errors import HostError

PACKAGE = Path(durable.__file__).parent.parent


def trace(tmp_path: Path, code: str) -> list[str]:
    """The calls of a piece of code that touch tmp_path, in order: "fsync PATH", "rename PATH"."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (Debian package strace; CI installs it)")
    log = tmp_path / "strace.log"
    prelude = "from pathlib import Path; from fleet_host import durable\n"
    done = subprocess.run(
        [
            "strace",
            "-f",
            "-y",
            "-o",
            str(log),
            "-e",
            "trace=openat,write,fsync,fchmod,fchown,rename,renameat,renameat2,symlink,symlinkat",
            sys.executable,
            "-c",
            prelude + code,
        ],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "ptrace" in done.stderr.lower() and done.returncode != 0:
        pytest.skip(f"strace may not trace here: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    calls = []
    for line in log.read_text().splitlines():
        found = re.match(r"\d+\s+(\w+)\((.*)", line)
        if found and str(tmp_path) in line and "strace.log" not in line:
            name = re.sub(r"\.[^\"<>/]*\.tmp", "TEMPORARY", found[2])
            kind = "rename" if found[1].startswith("rename") else found[1]
            calls.append(f"{kind} {name.replace(str(tmp_path), '')}")
    return calls


def order(calls: list[str], *patterns: str) -> None:
    """Assert that calls matching the patterns appear in that order."""
    position = 0
    for pattern in patterns:
        rest = [index for index in range(position, len(calls)) if re.search(pattern, calls[index])]
        assert rest, f"{pattern!r} does not follow in {calls}"
        position = rest[0] + 1


def test_a_file_is_synced_before_its_rename_and_the_directory_after(tmp_path: Path) -> None:
    calls = trace(tmp_path, f"durable.write_file(Path({str(tmp_path)!r}, 'a'), 'x', mode=0o600)")
    order(
        calls,
        r"^openat .*TEMPORARY.*O_EXCL.*0600",
        r"^fchmod .*TEMPORARY",
        r"^write .*TEMPORARY",
        r"^fsync .*TEMPORARY",
        r'^rename "/TEMPORARY", "/a"',
        r"^fsync \d+<>\)",
    )


def test_a_link_is_renamed_and_its_directory_synced(tmp_path: Path) -> None:
    calls = trace(tmp_path, f"durable.replace_symlink(Path({str(tmp_path)!r}, 'l'), 'target')")
    order(calls, r"^symlink", r'^rename "/TEMPORARY", "/l"', r"^fsync \d+<>\)")


def test_a_directory_is_synced_to_its_leaves_before_it_is_published(tmp_path: Path) -> None:
    (tmp_path / "in" / "model" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "model" / "sub" / "file").write_text("x")
    calls = trace(
        tmp_path,
        f"durable.publish_directory(Path({str(tmp_path)!r}, 'in/model'), "
        f"Path({str(tmp_path)!r}, 'out'))",
    )
    order(
        calls,
        r"^fsync \d+</in/model/sub/file>",
        r"^fsync \d+</in/model/sub>",
        r"^fsync \d+</in/model>",
        r'^rename "/in/model", "/out"',
        r"^fsync \d+<>\)",
        r"^fsync \d+</in>",
    )


def test_a_mode_holds_before_the_content_is_there(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    durable.write_file(path, b"x", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    durable.write_file(path, b"y", mode=0o644)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"y", 0o644)


def test_a_failed_write_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    durable.write_file(path, "old")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        durable.write_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_publishing_over_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(FileExistsError):
        durable.publish_directory(tmp_path / "a", tmp_path / "b")


def test_json_that_somebody_broke_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(HostError, match=r"a\.json"):
        durable.read_json(tmp_path / "a.json")
    assert durable.read_json(tmp_path / "none.json") is None


def test_read_only_trees_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_text("x")
    (tmp_path / "a" / "b").chmod(0o555)
    durable.remove_tree(tmp_path / "a")
    assert not (tmp_path / "a").exists()
