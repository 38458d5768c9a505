"""Peak memory of a pull, without the client: python -m tests.bench pull

A model whose index names 200,000 tensors (94 layers with 128 experts in FP8 are some 110,000) is
listed, pulled by a client that only copies, verified and published by files/fleet_host in a process
of its own. What counts is the most memory that this process has had (VmHWM, proc(5)).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from lab.hub import store
from lab.hub.places import models_directory
from lab.hub.server import Hub, running
from tests.bench.verify import FILES, LARGEST_PEAK_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

MODEL = "bench/many-tensors"
PULL = """
import json, sys
sys.path.insert(0, sys.argv[1])
from fleet_host import pull
from fleet_host.status import Progress
pull.run(json.load(sys.stdin), Progress(None))
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 when the limit is not kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench pull", description=__doc__)
    parser.add_argument("--tensors", type=int, default=200_000)
    parser.add_argument("--shards", type=int, default=50)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-pull-") as name:
        root = Path(name)
        hub = root / "hub"
        commit = store.publish(
            models_directory(hub), made(root / "made", options.tensors, options.shards), MODEL
        )
        found = store.revision(models_directory(hub), MODEL, commit)
        program = root / "client"
        program.write_text(f'#!/bin/sh\ncp -rf {found.directory}/. "$7/"\n')
        program.chmod(0o755)
        index = (found.directory / "model.safetensors.index.json").stat().st_size
        print(
            f"{options.tensors} tensors in {options.shards} shards, index of {index / 1e6:.0f} MB"
        )
        with running(Hub(hub)) as endpoint:
            listed = peak(root / "listed", endpoint, program)
            files = [
                {"path": one.path, "size": one.size_bytes, "sha256": one.sha256}
                for one in found.files
            ]
            locked = peak(root / "locked", endpoint, program, files=files, directory="master-x")
    limit = LARGEST_PEAK_BYTES / 1e6
    print(
        f"peak memory: as the hub lists it {listed / 1e6:.0f} MB, by a lock {locked / 1e6:.0f} MB; "
        f"{limit:.0f} MB are allowed"
    )
    return int(max(listed, locked) > LARGEST_PEAK_BYTES)


def made(directory: Path, tensors: int, shards: int) -> Path:
    """Names as a mixture of experts has them, one byte a tensor."""
    directory.mkdir()
    names = [
        f"model.layers.{number // 2000}.mlp.experts.{number % 2000}.down_proj.weight_scale_inv"
        for number in range(tensors)
    ]
    where = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        own = names[shard::shards]
        header = json.dumps(
            {
                name: {"dtype": "U8", "shape": [1], "data_offsets": [at, at + 1]}
                for at, name in enumerate(own)
            }
        ).encode()
        content = len(header).to_bytes(8, "little") + header + b"\x01" * len(own)
        (directory / file).write_bytes(content)
        where.update(dict.fromkeys(own, file))
    (directory / "config.json").write_text("{}")
    index = json.dumps({"metadata": {}, "weight_map": where}, indent=2)
    (directory / "model.safetensors.index.json").write_text(index)
    return directory


def peak(target: Path, endpoint: str, program: Path, **more: object) -> int:
    """Bytes."""
    target.mkdir()
    spec = {
        "model_id": MODEL,
        "revision": "master",
        "endpoint": endpoint,
        "target": str(target),
        "client": str(program),
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PULL, str(FILES)],
        input=json.dumps(spec), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        check=True,
    )  # fmt: skip
    return int(done.stdout.split()[-1]) * 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
