"""`fleet plan --facts` for 100 hosts, as a whole process: python -m tests.bench plan [--hosts N]

Hosts of eight L20 with a snapshot each, half of them deployed, some with something wrong; no two
have the same outputs, as UUIDs, temperatures and logs differ between real hosts. The model's index
has the size of the real one, 72,000 tensors. docs/measurements.md has the result.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.settings.fleet import load_fleet
from tests.unit.foresight.places import L20X8, QWEN3_235B, REPOSITORY, Place
from tests.unit.planning import worlds

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT_SECONDS = 2.0
# An installed program has its bytecode; the first round writes it here and is not counted.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
LAYERS, EXPERTS, SHARDS = 94, 128, 48


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 when it takes longer than LIMIT_SECONDS for 100 hosts."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench plan", description=__doc__)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", action="store_true", help="where the time goes, one round")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        place = hundred(Path(directory), options.hosts)
        if options.profile:
            return subprocess.run(
                [sys.executable, "-m", "cProfile", "-s", "cumtime", *_fleet(place)[1:]],
                cwd=REPOSITORY,
                check=False,
            ).returncode
        timed(_fleet(place))
        wall, cpu = [], []
        for number in range(options.rounds):
            seconds, used = timed(_fleet(place))
            wall.append(seconds)
            cpu.append(used)
            print(f"round {number + 1}: {seconds:.2f} s, {used:.2f} s of CPU")
    print(
        f"{options.hosts} hosts: {statistics.median(wall):.2f} s "
        f"({min(wall):.2f} to {max(wall):.2f}), {statistics.median(cpu):.2f} s of CPU"
    )
    return int(options.hosts == 100 and statistics.median(wall) > LIMIT_SECONDS)


def _fleet(place: Place) -> list[str]:
    return [sys.executable, "-m", "pyinfra_deploy.cli", *place.arguments()]


def timed(command: Sequence[str]) -> tuple[float, float]:
    """(wall, CPU) seconds of the process, from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, cwd=REPOSITORY, env=ENVIRONMENT, text=True, check=False
    )
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "hosts would be deployed; refused:" in done.stdout, done.stdout[-2000:]
    assert "hosts would be deployed; refused:" in done.stdout, done.stdout[-2000:]
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def hundred(directory: Path, count: int) -> Place:
    """Inventory, facts and model."""
    names = tuple(f"gpu{number:03}" for number in range(1, count + 1))
    place = Place(directory / "fleet", *names)
    place.write()
    place.model = model(directory / "model")
    settings = load_fleet(place.inventory).hosts[names[0]].settings
    fresh = worlds.untouched()
    fresh["os"] |= {"id": "ubuntu", "version_id": "24.04", "codename": "noble",
                    "pythons": ["/usr/bin/python3.12"], "python": "3.12.3"}  # fmt: skip
    deployed = {
        **worlds.converged(settings, worlds.artefacts_with(settings)),
        "os": {**fresh["os"], "nginx": "1.24.0", "nginx_openssl": "3.0.13"},
    }
    for number, name in enumerate(names):
        own = place.facts / name
        for file in (own / "nvidia-smi-q-x.xml", own / "nvidia-smi-query-gpu.csv"):
            file.write_text(different(file.read_text(), number))
        log = (own / "kernel-log.txt").read_text().replace("[   14.", f"[   {14 + number % 40}.")
        (own / "kernel-log.txt").write_text(log.replace("14.6", f"{14 + number % 40}.6"))
        (own / "uname.txt").write_text((L20X8 / "uname.txt").read_text().replace("l20x8", name))
        snapshot = dict(deployed if number % 2 else fresh, hostname=name)
        (own / "snapshot.json").write_text(json.dumps(snapshot))
    return place


def different(text: str, number: int) -> str:
    """The outputs of another host: other UUIDs and temperatures; of every tenth a narrow link."""
    text = text.replace("GPU-", f"GPU-{number:03x}").replace("34 C", f"{34 + number % 20} C")
    if number % 10 == 9:
        text = text.replace("<performance_state>P8<", "<performance_state>P0<")
        text = text.replace("<current_link_width>16x<", "<current_link_width>4x<", 1)
    return text


def model(directory: Path) -> Path:
    """The fixture's documents with an index of the real size, 7 MB."""
    directory.mkdir()
    for name in ("config.json", "listing.json"):
        (directory / name).write_bytes((QWEN3_235B / name).read_bytes())
    document: dict[str, Any] = json.loads((QWEN3_235B / "model.safetensors.index.json").read_text())
    document["weight_map"] = {
        f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.{kind}": (
            f"model-{layer * SHARDS // LAYERS + 1:05d}-of-{SHARDS:05d}.safetensors"
        )
        for layer in range(LAYERS)
        for expert in range(EXPERTS)
        for part in ("gate", "up", "down")
        for kind in ("weight", "weight_scale_inv")
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(document, indent=2))
    return directory
