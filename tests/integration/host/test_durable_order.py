"""The order of a durable write's system calls: a power cut cannot be had in a test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fleet_host import durable

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
