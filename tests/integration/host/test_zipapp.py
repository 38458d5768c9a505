"""fleet-host as the one file that the deploy puts on a host, run by a bare interpreter."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.operations import install, packing
from tests.fakes.traced import order, traced

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """{llm_root}/bin/fleet-host"""
    target = tmp_path / "bin" / "fleet-host"
    target.parent.mkdir()
    target.write_bytes(packing.host_program())
    return target


def call(installed: Path, *words: str, stdin: str = "{}") -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-I", str(installed), *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_version_is_the_files_own_digest(installed: Path) -> None:
    digest = hashlib.sha256(installed.read_bytes()).hexdigest()
    assert digest == packing.host_program_digest()
    assert call(installed, "version", stdin="") == (0, {"program": digest, "schema": 1})


def test_the_shell_that_installs_it_is_durable(tmp_path: Path) -> None:
    """Behind the lease: units of a host that comes back from a power cut start this very file."""
    program = packing.host_program()
    lease = {"owner": "me@here", "machine": "here:1:2", "run": "r", "pid": 1, "pid_start": 1}
    calls = traced(
        tmp_path,
        ["sh", "-c", install.command(str(tmp_path), program, "lease acquire").get_raw_value()],
        stdin=install.standard_input(program, {**lease, "ttl_seconds": 9, "generation_seen": 0}),
    )
    order(
        calls,
        r"^write \d+</bin/TEMPORARY>",
        r'^rename .*"/state/lease.json"',
        r"^fsync \d+</state>",
        r"^fsync \d+</bin/TEMPORARY>",
        r'^rename .*"/bin/TEMPORARY", .*"/bin/fleet-host"',
        r"^fsync \d+</bin>",
    )


def test_llm_root_follows_from_where_the_program_is(installed: Path) -> None:
    (installed.parent.parent / "jobs").mkdir()
    code, answer = call(installed, "job", "status", stdin='{"kind": "pull", "id": "none"}')
    assert (code, answer["state"]) == (0, "absent")


def test_bad_usage_is_exit_2(installed: Path) -> None:
    code, answer = call(installed, "no", "such")
    assert (code, answer["error"]["what"]) == (2, "fleet-host: bad usage")
