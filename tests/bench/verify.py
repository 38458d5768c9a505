"""Verification against bare hashlib, and an unchanged model: python -m tests.bench verify

A model of 5 GB shards' proportions in page cache is verified by files/fleet_host, and hashed by as
many bare Python processes as there are cores, each with its share of the files, in turns. Only the
hashing is timed, not the start of the processes. Then records of many files are compared with their
stats, which is what an unchanged model costs inside the snapshot that a deploy takes of each host;
the start of Python, which the snapshot pays once for all it looks at, is shown and not counted.
docs/measurements.md has the results.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FILES = Path(__file__).resolve().parents[2] / "files"
LEAST_SHARE = 0.95
LARGEST_PEAK_BYTES = 200 << 20
UNCHANGED_SECONDS, PER_FILE_SECONDS = 0.050, 0.001
MIB = 1 << 20

BARE = """
import hashlib, sys, time
print(time.monotonic(), time.process_time())
buffer = bytearray(1 << 20)
view = memoryview(buffer)
for path in sys.argv[1:]:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
print(time.monotonic(), time.process_time())
"""
OURS = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from fleet_host import integrity, model_record
from fleet_host.status import Progress
directory = Path(sys.argv[2])
record = model_record.require_record(directory)
entries = model_record.recorded_entries(record)
print(time.monotonic(), time.process_time())
verdicts = integrity.verify_files(
    directory, entries, progress=Progress(None), from_disk=sys.argv[3] == "disk"
)
print(time.monotonic(), time.process_time())
assert all(verdict.problem is None for verdict in verdicts), verdicts
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""
UNCHANGED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from fleet_host import model_record
directory = Path(sys.argv[2])
print(time.monotonic())
record = model_record.require_record(directory)
assert model_record.touched_entries(directory, record) == []
assert model_record.strays_in(directory, model_record.recorded_entries(record)) == []
print(time.monotonic())
"""


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 when one of the limits above is not kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench verify", description=__doc__)
    parser.add_argument("--shards", type=int, default=12)
    parser.add_argument("--mib", type=int, default=256, help="of a shard")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--disk", action="store_true", help="also as a deep verification reads")
    parser.add_argument("--dir", type=Path, default=None, help="on which file system")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-verify-", dir=options.dir) as name:
        directory = shards(Path(name) / "model", options.shards, options.mib)
        kept = in_cache(directory, options.rounds)
        if options.disk:
            print(f"from the disk: {in_words(ours(directory, 'disk')[0])}")
        for count in (3, 200, 2000):
            kept = unchanged(Path(name) / f"files-{count}", count, options.rounds) and kept
    return int(not kept)


def shards(directory: Path, count: int, mib: int) -> Path:
    """A model of `count` valid shards; no two have the same content."""
    directory.mkdir()
    contents = {}
    block = os.urandom(MIB)
    for number in range(count):
        header = json.dumps(
            {f"t{number}": {"dtype": "U8", "shape": [mib * MIB], "data_offsets": [0, mib * MIB]}}
        ).encode()
        path = directory / f"model-{number:05d}.safetensors"
        digest = hashlib.sha256()
        with path.open("wb") as file:
            for piece in (len(header).to_bytes(8, "little") + header, *[block] * mib):
                file.write(piece)
                digest.update(piece)
            os.fsync(file.fileno())
        contents[path.name] = digest.hexdigest()
    return recorded(directory, contents)


def recorded(directory: Path, digests: dict[str, str]) -> Path:
    sys.path.insert(0, str(FILES))
    from fleet_host import integrity, model_record
    from fleet_host.listing import FileEntry

    verdicts = []
    for name, digest in digests.items():
        stat = integrity.stat_of(directory / name)
        assert stat is not None
        verdicts.append(integrity.Verdict(FileEntry(name, stat.size_bytes, digest), None, stat))
    model_record.write_record(directory, verdicts, {"model_id": "bench/model"})
    return directory


@dataclass(frozen=True)
class Rate:
    """Of hashing: GB/s, and what a GB cost in seconds of CPU, which other work changes less."""

    gb_per_second: float
    cpu_seconds_per_gb: float


def in_cache(directory: Path, rounds: int) -> bool:
    """Both in turns, so that other work on the machine hits both alike; the first is not counted.

    The best rounds are compared: other work can only make either slower.
    """
    total = sum(path.stat().st_size for path in directory.iterdir())
    cores = len(os.sched_getaffinity(0))
    print(f"{total / 1e9:.1f} GB in {len(list(directory.iterdir()))} files, {cores} cores")
    theirs: list[Rate] = []
    mine: list[Rate] = []
    peak = 0
    for number in range(rounds + 1):
        if number % 2:
            theirs.append(bare(directory, cores))
        rate, used = ours(directory, "cache")
        mine.append(rate)
        if not number % 2:
            theirs.append(bare(directory, cores))
        peak = max(peak, used)
        if number:
            print(f"round {number}: bare {in_words(theirs[-1])}; ours {in_words(mine[-1])}")
    best_theirs, best_mine = best(theirs[1:]), best(mine[1:])
    share = best_mine.gb_per_second / best_theirs.gb_per_second
    print(
        f"{cores} bare processes {in_words(best_theirs)}; ours {in_words(best_mine)}: {share:.1%}; "
        f"peak memory {peak / 1e6:.0f} MB"
    )
    return share >= LEAST_SHARE and peak <= LARGEST_PEAK_BYTES


def best(rates: list[Rate]) -> Rate:
    return Rate(
        max(rate.gb_per_second for rate in rates), min(rate.cpu_seconds_per_gb for rate in rates)
    )


def in_words(rate: Rate) -> str:
    return f"{rate.gb_per_second:.2f} GB/s ({rate.cpu_seconds_per_gb:.2f} s of CPU a GB)"


def bare(directory: Path, cores: int) -> Rate:
    """All processes together: each one's own rate, so that one which the machine held up does not
    count against them."""
    paths = sorted(directory.iterdir())
    shares = [share for core in range(cores) if (share := paths[core::cores])]
    children = [
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BARE, *map(str, share)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for share in shares
    ]
    rate = cpu = total = 0.0
    for child, share in zip(children, shares, strict=True):
        begin, cpu_begin, end, cpu_end = (float(word) for word in child.communicate()[0].split())
        size = sum(path.stat().st_size for path in share) / 1e9
        rate, cpu, total = rate + size / (end - begin), cpu + cpu_end - cpu_begin, total + size
    return Rate(rate, cpu / total)


def ours(directory: Path, where: str) -> tuple[Rate, int]:
    """(rate, peak memory in bytes)"""
    total = sum(path.stat().st_size for path in directory.iterdir()) / 1e9
    begin, cpu_begin, end, cpu_end, peak = run(OURS, directory, where)
    return Rate(total / (end - begin), (cpu_end - cpu_begin) / total), int(peak) * 1024


def run(code: str, directory: Path, *more: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(FILES), str(directory), *more],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [float(word) for word in done.stdout.split()]


def unchanged(directory: Path, count: int, rounds: int) -> bool:
    directory.mkdir()
    empty = hashlib.sha256(b"").hexdigest()
    for number in range(count):
        (directory / f"f{number}").touch()
    recorded(directory, {f"f{number}": empty for number in range(count)})
    times, whole = [], []
    for _ in range(rounds):
        began = time.monotonic()
        begin, end = run(UNCHANGED, directory)
        whole.append(time.monotonic() - began)
        times.append(end - begin)
    allowed = UNCHANGED_SECONDS + PER_FILE_SECONDS * count
    middle = statistics.median(times)
    print(
        f"unchanged, {count} files: {middle * 1000:.1f} ms of {allowed * 1000:.0f} allowed; with "
        f"the start of Python {statistics.median(whole) * 1000:.0f} ms"
    )
    return middle <= allowed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
