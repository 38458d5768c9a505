"""The parts that every converge and every plan waits for, each alone: the best and the median."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyinfra_deploy.facts import raw
from pyinfra_deploy.facts.assemble import assemble
from pyinfra_deploy.facts.snapshot import SNAPSHOT_SOURCE
from pyinfra_deploy.planning import tables
from pyinfra_deploy.settings import load_fleet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[2]
FACTS = ROOT / "tests" / "unit" / "facts" / "fixtures" / "hosts" / "l20"
ROUNDS = 10


def main(_arguments: Sequence[str]) -> int:
    outputs = raw.read_directory(FACTS)
    with tempfile.TemporaryDirectory() as root:
        print("| part | best, ms | median, ms |")
        print("|---|---|---|")
        for name, work in (
            ("a host's snapshot, as a process of its own", lambda: snapshot(root)),
            ("raw outputs of 8 GPUs to Hardware", lambda: assemble("l20", outputs)),
            ("the planning tables", read_tables),
            ("settings of inventories/prod", lambda: load_fleet("prod", ROOT)),
        ):
            best, median = measure(work)
            print(f"| {name} | {best * 1000:.1f} | {median * 1000:.1f} |")
    return 0


def measure(work: Callable[[], object]) -> tuple[float, float]:
    work()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times), statistics.median(times)


def snapshot(root: str) -> None:
    request = {"llm_root": root, "packages": ["bash"], "users": ["root"], "files": ["/etc/passwd"]}
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", SNAPSHOT_SOURCE.read_text(), json.dumps(request)],
        capture_output=True,
        check=True,
    )


def read_tables() -> None:
    readers = (tables.vllm_versions, tables.cuda_drivers, tables.architectures,
               tables.quantisations, tables.gpu_models, tables.engine_arguments)  # fmt: skip
    for reader in readers:
        reader.cache_clear()
        reader()
