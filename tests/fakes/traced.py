"""A program's system calls in order, as strace saw them: a power cut cannot be had in a test."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.engine_host import FILES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

TRACED = (
    "openat,write,fsync,syncfs,fchmod,fchown,rename,renameat,renameat2,symlink,symlinkat,unlink,"
    "unlinkat"
)


def traced(
    tmp_path: Path,
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
    options: Sequence[str] = (),
) -> list[str]:
    """The calls of a program and its children that touch tmp_path: `fsync 3</a>`, `rename "/b",
    "/a"`. Below tmp_path, names that are random are TEMPORARY. Skips without strace.
    """
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (Debian package strace; CI installs it)")
    log = tmp_path / "strace.log"
    done = subprocess.run(
        ["strace", "-f", "-y", "-s", "4096", "-o", log, "-e", f"trace={TRACED}", *options, *argv],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    if "ptrace" in done.stderr.lower() and done.returncode != 0:
        pytest.skip(f"strace may not trace here: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stdout + done.stderr
    calls = []
    for line in log.read_text().splitlines():
        found = re.match(r"\d+\s+(\w+)\((.*)", line)
        if found and str(tmp_path) in line and "strace.log" not in line:
            name = re.sub(r"(\.[^\"<>/]*\.tmp|fleet-host\.new\.\d+)", "TEMPORARY", found[2])
            kind = "rename" if found[1].startswith("rename") else found[1]
            calls.append(f"{kind} {name.replace(str(tmp_path), '')}")
    return calls


def traced_job(
    tmp_path: Path, kind: str, spec: Mapping[str, Any], options: Sequence[str] = ()
) -> list[str]:
    """The same of a job's `run` in the host program. kind: its module, such as "pull"."""
    code = (
        f"import json, sys; from fleet_host import {kind}; from fleet_host.status import Progress; "
        f"{kind}.run(json.load(sys.stdin), Progress(None))"
    )
    return traced(
        tmp_path,
        [sys.executable, "-c", code],
        environment={"PYTHONPATH": str(FILES)},
        stdin=json.dumps(spec),
        options=options,
    )


def order(calls: list[str], *patterns: str) -> None:
    """Assert that calls matching the patterns appear in that order."""
    position = 0
    for pattern in patterns:
        rest = [index for index in range(position, len(calls)) if re.search(pattern, calls[index])]
        assert rest, f"{pattern!r} does not follow in {calls}"
        position = rest[0] + 1


def only(calls: list[str], pattern: str) -> int:
    """Where the one call is that matches."""
    found = [index for index, call in enumerate(calls) if re.search(pattern, call)]
    assert len(found) == 1, f"{len(found)} calls match {pattern!r} in {calls}"
    return found[0]
