"""As `fanout`, without the lab: python -m tests.bench fanout-loopback --client .../bin/modelscope

Four hosts' servers and pulls as processes of this machine, the real client, the lab's hub in this
process, which sends 20 MB/s in all. One host pulls alone, then four together.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.hub import store
from lab.hub.faults import Fault
from lab.hub.places import models_directory
from lab.hub.server import Hub, running
from pyinfra_deploy.planning.model_files import content_digest
from tests.bench import transfer
from tests.bench.fanout import FILES_AT_ONCE, MODEL, MOST_SENT, MOST_TIMES, weights

if TYPE_CHECKING:
    from collections.abc import Sequence

HOSTS = 4


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 when one of the two limits is not kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench fanout-loopback")
    parser.add_argument("--client", type=Path, required=True, help="modelscope, as locked")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--mib", type=int, default=60, help="of a shard")
    parser.add_argument("--hub-mb-per-second", type=int, default=20)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        hub = Hub(Path(name) / "hub")
        models = models_directory(hub.directory)
        models.mkdir(parents=True)
        store.publish(models, weights(Path(name) / "made", options.shards, options.mib), MODEL)
        stored = store.revision(models, MODEL, "master").files
        rows = [{"path": it.path, "size": it.size_bytes, "sha256": it.sha256} for it in stored]
        stream = options.hub_mb_per_second * 1_000_000 // FILES_AT_ONCE
        hub.board.replace([Fault("slow", path="*.safetensors", value=stream)])
        total = sum(it.size_bytes for it in stored)
        with running(hub) as url:
            (one,) = pulled(Path(name) / "one", 1, rows, url, options.client)
            alone = sent(hub)
            times = pulled(Path(name) / "four", HOSTS, rows, url, options.client)
    ratio, share = max(times) / one, (sent(hub) - alone) / total
    shown = ", ".join(f"{seconds:.1f}" for seconds in times)
    print(
        f"{total / 1e9:.2f} GB: one alone {one:.1f} s; {HOSTS} together {shown} s: {ratio:.2f} "
        f"times the time of one, {share:.2f} times the model from the hub"
    )
    return int(ratio > MOST_TIMES or share > MOST_SENT)


def sent(hub: Hub) -> int:
    counted: dict[str, int] = hub.board.counters()["bytes"]
    return sum(counted.values())


def pulled(
    place: Path, count: int, rows: list[dict[str, Any]], url: str, client: Path
) -> list[float]:
    named = [(row["path"], row["size"], row["sha256"]) for row in rows]
    directory = f"master-{content_digest(named)[:12]}"
    model = f"{MODEL.replace('/', '--')}/{directory}"
    share = count > 1
    roots = transfer.made_roots(place, model, count, transfer.free_port(), giver=False)
    servers = transfer.servers_of(roots) if share else []
    spec = {
        "model_id": MODEL, "revision": "master", "directory": directory, "files": rows,
        "endpoint": url, "client": str(client), "files_at_once": FILES_AT_ONCE,
        **({"fan_out": True} if share else {}),
    }  # fmt: skip
    began = time.monotonic()
    pulls = [
        transfer.job(root, "pull", {**spec, "target": str(root / "models")}) for root, _ in roots
    ]
    times = [0.0] * count

    def wait(number: int) -> None:
        pulls[number].communicate(timeout=3600)
        times[number] = time.monotonic() - began

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    transfer.end(servers)
    if any(child.returncode for child in pulls):
        raise SystemExit("a pull failed")
    return times


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
