"""Ways to bring a model from one host to others, on loopback: python -m tests.bench transfer

One giver and some takers, each with a directory of its own, get the same shards by: a host's own
share server and pulls (files/fleet_host), an rsync daemon, BitTorrent by aria2. Every way ends with
all files verified against their SHA-256, and the same files on the disk. Ways whose program is not
installed are left out. docs/measurements.md has the results.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.torrent import Tracker, torrent_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FILES = Path(__file__).resolve().parents[2] / "files"
MIB = 1 << 20
MODEL = "bench--model/master-000000000000"
TOKEN = "0" * 64
JOB = """
import json, sys
sys.path.insert(0, sys.argv[1])
import importlib
from fleet_host.status import Progress
module = importlib.import_module("fleet_host." + sys.argv[2])
module.run(json.loads(sys.stdin.read()), Progress(None))
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""
VERIFY = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from fleet_host import integrity
from fleet_host.listing import FileEntry
entries = [FileEntry(row["path"], row["size"], row["sha256"]) for row in json.load(sys.stdin)]
verdicts = integrity.verify_files(Path(sys.argv[2]), entries, sync=True)
assert all(verdict.problem is None for verdict in verdicts), verdicts
"""


@dataclass
class World:
    """rows: {path, size, sha256} of each shard in `source`."""

    directory: Path
    source: Path
    rows: list[dict[str, Any]]
    takers: int

    @property
    def total_bytes(self) -> int:
        return sum(int(row["size"]) for row in self.rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench transfer", description=__doc__)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--mib", type=int, default=64, help="of a shard")
    parser.add_argument("--takers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--aria2c", default=shutil.which("aria2c"), help="where it is")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-transfer-") as name:
        world = made(Path(name), options.shards, options.mib, options.takers)
        ways: dict[str, Callable[[World, Path], str]] = {"share server and pulls": ours}
        if shutil.which("rsync"):
            ways["rsync daemon, then verified"] = rsync
        if options.aria2c:
            ways["BitTorrent by aria2, then verified"] = lambda w, d: aria2(w, d, options.aria2c)
        gigabytes = world.total_bytes * world.takers / 1e9
        print(f"{world.total_bytes / 1e9:.2f} GB to {world.takers} takers")
        print("| way | s, least | CPU s a GB brought, least | |\n|---|---|---|---|")
        for label, way in ways.items():
            wall, cpu, note = [], [], ""
            for number in range(options.rounds):
                place = Path(name) / f"round-{number}"
                place.mkdir()
                before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
                note = way(world, place)
                wall.append(time.monotonic() - began)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                cpu.append(used / gigabytes)
                shutil.rmtree(place)
            print(f"| {label} | {min(wall):.1f} | {min(cpu):.2f} | {note} |", flush=True)
    return 0


def made(directory: Path, shards: int, mib: int, takers: int) -> World:
    source = directory / "source"
    source.mkdir()
    block, rows = os.urandom(MIB), []
    for number in range(shards):
        digest = hashlib.sha256()
        path = source / f"shard-{number:02d}.bin"
        with path.open("wb") as file:
            for piece in range(mib):
                content = piece.to_bytes(4, "big") + number.to_bytes(4, "big") + block[8:]
                file.write(content)
                digest.update(content)
        rows.append({"path": path.name, "size": mib * MIB, "sha256": digest.hexdigest()})
    return World(directory, source, rows, takers)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))  # noqa: S104 - for a moment, to find a port
        port: int = probe.getsockname()[1]
        return port


def listening(address: str, port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            socket.create_connection((address, port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise SystemExit(f"nothing listens at {address} port {port}")


def verify(world: World, directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-S", "-c", VERIFY, str(FILES), str(directory)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    assert child.stdin is not None
    child.stdin.write(json.dumps(world.rows))
    child.stdin.close()
    return child


def done(children: list[subprocess.Popen[str]]) -> None:
    for child in children:
        if child.wait(600):
            raise SystemExit(f"a program ended with {child.returncode}")


# --- ours


def ours(world: World, place: Path) -> str:
    roots = made_roots(place, MODEL, world.takers + 1, free_port(), giver=True)
    publish(world, roots[0][0])
    servers = servers_of(roots)
    pulls = [job(root, "pull", pull_spec(world, root)) for root, _ in roots[1:]]
    peaks = []
    for child in pulls:
        out, _ = child.communicate(timeout=600)
        if child.returncode:
            raise SystemExit("a pull failed")
        peaks.append(int(out.split()[-1]))
    end(servers)
    return f"peak memory of a pull {max(peaks) / 1024:.0f} MiB"


def made_roots(
    place: Path, model: str, count: int, port: int, *, giver: bool
) -> list[tuple[Path, dict[str, Any]]]:
    """Directories of so many hosts that share a model, and each one's place as a peer. giver: the
    first one does not pull."""
    peers = [
        {"name": f"h{n}", "rank": n, "address": f"127.0.0.{n + 11}", "port": port}
        for n in range(count)
    ]
    roots = []
    for number, peer in enumerate(peers):
        root = place / f"h{number}"
        shared = root / "run/llm/fan-out" / f"{model.replace('/', '--')}.json"
        shared.parent.mkdir(parents=True)
        (root / "models").mkdir()
        (root / "run/llm-pull" / model.replace("/", "--")).mkdir(parents=True)
        (root / "client").write_text("#!/bin/sh\nexit 1\n")
        (root / "client").chmod(0o755)
        document = {
            "model": model, "name": f"h{number}", "rank": number, "opened_at": time.monotonic(),
            "pulling": number > 0 or not giver, "tokens": [TOKEN], "peers": peers,
            "allowed": ["127.0.0.1"], "rate_bytes_per_second": None,
        }  # fmt: skip
        shared.write_text(json.dumps(document))
        roots.append((root, peer))
    return roots


def servers_of(roots: list[tuple[Path, dict[str, Any]]]) -> list[subprocess.Popen[str]]:
    servers = []
    for root, peer in roots:
        spec = {"address": peer["address"], "port": peer["port"], "idle_seconds": 3600}
        servers.append(job(root, "share_server", spec))
        listening(peer["address"], peer["port"])
    return servers


def end(children: list[subprocess.Popen[str]]) -> None:
    for child in children:
        child.kill()
        child.communicate()


def pull_spec(world: World, root: Path) -> dict[str, Any]:
    return {
        "model_id": "bench/model", "revision": "master", "directory": MODEL.split("/")[1],
        "files": world.rows, "endpoint": "http://127.0.0.1:9", "target": str(root / "models"),
        "client": str(root / "client"), "files_at_once": 4, "fan_out": True,
    }  # fmt: skip


def publish(world: World, root: Path) -> None:
    """The giver's model: linked, with the record that its pull would have written."""
    goal = root / "models" / MODEL
    goal.mkdir(parents=True)
    rows = []
    for row in world.rows:
        os.link(world.source / row["path"], goal / row["path"])
    for row in world.rows:
        seen = (goal / row["path"]).stat()
        times = {"mtime_ns": seen.st_mtime_ns, "ctime_ns": seen.st_ctime_ns, "inode": seen.st_ino}
        rows.append({**row, **times})
    goal.with_name(goal.name + ".json").write_text(json.dumps({"schema": 1, "files": rows}))


def job(root: Path, module: str, spec: dict[str, Any]) -> subprocess.Popen[str]:
    environment = {
        **os.environ, "FLEET_LLM_ROOT": str(root), "FLEET_RUN_ROOT": str(root / "run"),
        "FLEET_STATE_ROOT": str(root / "state"),
    }  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", JOB, str(FILES), module],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=environment,
    )  # fmt: skip
    assert child.stdin is not None
    child.stdin.write(json.dumps(spec))
    child.stdin.close()
    child.stdin = None
    return child


# --- rsync


def rsync(world: World, place: Path) -> str:
    port = free_port()
    configuration = place / "rsyncd.conf"
    configuration.write_text(
        f"use chroot = no\n[model]\npath = {world.source}\nread only = yes\nmax connections = 0\n"
    )
    daemon = subprocess.Popen(
        ["rsync", "--daemon", "--no-detach", f"--port={port}", "--address=127.0.0.11",
         f"--config={configuration}", "--log-file=/dev/null"]
    )  # fmt: skip
    listening("127.0.0.11", port)
    goals = [place / f"h{number}" for number in range(world.takers)]
    done(
        [
            subprocess.Popen(
                ["rsync", "-a", "--whole-file", "--inplace", "--partial",
                 f"rsync://127.0.0.11:{port}/model/", f"{goal}/"], text=True
            )
            for goal in goals
        ]
    )  # fmt: skip
    done([verify(world, goal) for goal in goals])
    daemon.terminate()
    daemon.wait()
    return "takers give nothing to each other"


# --- BitTorrent


def aria2(world: World, place: Path, program: str) -> str:
    began = time.monotonic()
    tracker = Tracker()
    torrent = place / "model.torrent"
    torrent.write_bytes(torrent_of(world.source, world.rows, tracker.url))
    hashed = time.monotonic() - began
    common = [
        program, "--no-conf", "--quiet", "--file-allocation=none", "--enable-dht=false",
        "--enable-dht6=false", "--bt-enable-lpd=false", "--enable-peer-exchange=false",
        "--disable-ipv6", "--bt-max-peers=0", "--bt-tracker-interval=1",
        "--bt-min-crypto-level=plain",
    ]  # fmt: skip
    (place / "seed").mkdir()
    (place / "seed" / "source").symlink_to(world.source)
    ports = [free_port() for _ in range(world.takers + 1)]
    seeder = subprocess.Popen(
        [*common, f"--listen-port={ports[0]}", f"--dir={place / 'seed'}", "--seed-ratio=0.0",
         "--check-integrity=true", "--bt-seed-unverified=true", str(torrent)], text=True
    )  # fmt: skip
    while not tracker.seeders:
        time.sleep(0.05)
    goals = [place / f"h{number}" for number in range(world.takers)]
    leechers = [
        subprocess.Popen(
            [*common, f"--listen-port={port}", f"--dir={goal}", "--seed-ratio=0.0", str(torrent)],
            text=True,
        )
        for goal, port in zip(goals, ports[1:], strict=True)
    ]
    while tracker.complete < world.takers + 1:
        time.sleep(0.05)
        if any(child.poll() is not None for child in leechers):
            raise SystemExit("aria2 ended early")
    for child in (seeder, *leechers):
        child.terminate()
        child.wait()
    tracker.close()
    done([verify(world, goal / "source") for goal in goals])
    return f"of it {hashed:.1f} s for SHA-1 of every piece, which no lock has"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
