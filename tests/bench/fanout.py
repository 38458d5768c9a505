"""Four lab hosts and a slow hub: python -m tests.bench fanout

A model of 1 GB on the lab's hub, which sends 20 MB/s in all (5 MB/s for each of the 4 files at a
time). One host pulls it alone; then four pull it together, sharing. All four are to be done within
1.3 times the time of one, and the hub is to send at most 1.1 times the model. Needs root and the
lab. docs/measurements.md has the results.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import hosts
from lab.hub import control, store
from lab.hub.faults import Fault
from lab.hub.places import hub_directory, models_directory
from lab.plan import address_of
from pyinfra_deploy.planning.model_files import content_digest
from tests.bench import lab_hosts
from tests.bench.converge import put_back
from tests.hosts import pyinfra_run
from tests.hosts.lab_session import FIRST_MODEL, shell
from tests.hosts.standin_inventory import NAME, SETTINGS, Checkout

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = tuple(f"gpu{number}" for number in range(111, 115))
MODEL = "lab/fan-out-bench"
MIB = 1 << 20
MOST_TIMES, MOST_SENT = 1.3, 1.1
FILES_AT_ONCE = 4
PORT = 8472


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 when one of the two limits is not kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench fanout", description=__doc__)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--mib", type=int, default=60, help="of a shard")
    parser.add_argument("--hub-mb-per-second", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("needs root: it makes lab hosts", file=sys.stderr)
        return 1
    kept = True
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        was_down = not hosts.status()
        try:
            prepared(Path(name))
            files = published(Path(name) / "model", options.shards, options.mib)
            stream = options.hub_mb_per_second * 1_000_000 // FILES_AT_ONCE
            control.set_faults(Fault("slow", model=MODEL, path="*.safetensors", value=stream))
            for _ in range(options.rounds):
                kept = measure(files) and kept
        finally:
            control.clear_faults()
            shutil.rmtree(models_directory(hub_directory()) / MODEL, ignore_errors=True)
            put_back(was_down=was_down)
    return int(not kept)


def prepared(directory: Path) -> None:
    """Four hosts with everything that a locked model's deploy puts there."""
    lab_hosts.bring_up(NAMES)
    checkout = Checkout(directory)
    model = {**SETTINGS["model"], "id": FIRST_MODEL, "lock": "models-shared/first.json"}
    checkout.write(*NAMES, host_variables={name: {"model": model} for name in NAMES})
    command = [str(pyinfra_run.BIN / "fleet"), "model", "lock", NAME]
    done = pyinfra_run.run(command, root=checkout.root)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    checkout.deploy().done()


def weights(directory: Path, shards: int, mib: int) -> Path:
    """A directory with a model of so many valid shards."""
    directory.mkdir()
    names = [f"model-{number + 1:05d}-of-{shards:05d}.safetensors" for number in range(shards)]
    block = os.urandom(MIB)
    for number, name in enumerate(names):
        header = json.dumps(
            {f"t{number}": {"dtype": "U8", "shape": [mib * MIB], "data_offsets": [0, mib * MIB]}}
        ).encode()
        with (directory / name).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for _ in range(mib):
                file.write(block)
    named = {f"t{number}": name for number, name in enumerate(names)}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    (directory / "config.json").write_text('{"model_type": "qwen3"}')
    return directory


def published(directory: Path, shards: int, mib: int) -> list[dict[str, Any]]:
    """A model on the lab's hub; its files as a lock names them."""
    models = models_directory(hub_directory())
    store.publish(models, weights(directory, shards, mib), MODEL)
    stored = store.revision(models, MODEL, "master").files
    return [{"path": it.path, "size": it.size_bytes, "sha256": it.sha256} for it in stored]


def measure(files: list[dict[str, Any]]) -> bool:
    total = sum(int(file["size"]) for file in files)
    (one,) = pulled(NAMES[:1], files, share=False)
    alone = sent_by_hub(files)
    times = pulled(NAMES, files, share=True)
    sent = sent_by_hub(files)
    ratio, share = max(times) / one, sent / total
    shown = ", ".join(f"{seconds:.1f}" for seconds in times)
    print(
        f"{total / 1e9:.2f} GB: one alone {one:.1f} s ({alone / total:.2f} times the model from "
        f"the hub); {len(NAMES)} together {shown} s: {ratio:.2f} times the time of one, "
        f"{share:.2f} times the model from the hub"
    )
    return ratio <= MOST_TIMES and share <= MOST_SENT


def sent_by_hub(files: list[dict[str, Any]]) -> int:
    counted = control.counters()["bytes"]
    return sum(counted.get(str(file["path"]), 0) for file in files)


def pulled(names: Sequence[str], files: list[dict[str, Any]], *, share: bool) -> list[float]:
    """Seconds of each host's pull, from the moment at which the first was started."""
    rows = [(str(it["path"]), int(it["size"]), str(it["sha256"])) for it in files]
    directory = f"master-{content_digest(rows)[:12]}"
    slug = MODEL.replace("/", "--")
    for name in NAMES:
        shell(name, f"rm -rf /srv/llm/models/{slug} /srv/llm/models/.incoming/{slug}")
    control.reset_counters()
    if share:
        token = secrets.token_hex(32)
        for rank, name in enumerate(names):
            ask(name, "fan-out open", opening(names, rank, f"{slug}/{directory}", token))
    began = time.monotonic()
    seconds: dict[str, float] = {}

    def pull(name: str) -> None:
        request = {"kind": "pull", "id": f"{slug}--{directory}"}
        spec = pull_spec(name, directory, files, share=share)
        ask(name, "job start", {**request, "spec": spec})
        while (state := ask(name, "job status", request))["state"] == "running":
            time.sleep(0.3)
        if state["state"] != "done":
            raise SystemExit(f"{name}: {json.dumps(state, indent=1)}")
        seconds[name] = time.monotonic() - began

    threads = [threading.Thread(target=pull, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [seconds[name] for name in names]


def opening(names: Sequence[str], rank: int, model: str, token: str) -> dict[str, Any]:
    peers = [
        {"name": name, "rank": number, "address": address_of(name), "port": PORT}
        for number, name in enumerate(names)
    ]
    return {
        "model": model, "name": names[rank], "rank": rank, "pulling": True, "token": token,
        "peers": peers, "allowed": [address_of(name) for name in names],
        "rate_bytes_per_second": None, "address": address_of(names[rank]), "port": PORT,
        "idle_seconds": 30,
    }  # fmt: skip


def pull_spec(
    name: str, directory: str, files: list[dict[str, Any]], *, share: bool
) -> dict[str, Any]:
    client = shell(name, "ls /srv/llm/tools/modelscope-*/bin/modelscope").split()[0]
    endpoint = SETTINGS["model"]["endpoint"]
    return {
        "model_id": MODEL, "revision": "master", "directory": directory, "files": files,
        "commit": None, "endpoint": endpoint, "hub": "modelscope", "target": "/srv/llm/models",
        "client": client, "files_at_once": FILES_AT_ONCE, "token_file": None,
        **({"fan_out": True} if share else {}),
    }  # fmt: skip


def ask(name: str, command: str, request: dict[str, Any]) -> dict[str, Any]:
    text = shell(name, f"/srv/llm/bin/fleet-host {command}", input_text=json.dumps(request))
    document: dict[str, Any] = json.loads(text)
    return document


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
