"""What a rollout takes a host beyond the engine: python -m tests.bench rollout

Hosts of the lab with the stand-in engine, which nobody asks anything, so that no drain waits; no
soak and no golden prompts. `fleet rollout --batch 1` brings another release of the same runtime and
model to all of them, round by round. The figures are those of its own record, less each engine's
start as the host tells it. Exit code 1 when a host takes 10 s or more, at the median of the rounds.
Needs root and the lab.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import hosts
from pyinfra_deploy.rollout import record
from tests.bench import lab_hosts
from tests.bench.converge import NAMES, put_back
from tests.hosts import rollouts
from tests.hosts.standin_inventory import NAME, Checkout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_SECONDS_A_HOST = 10.0
NO_GATES: dict[str, Any] = {"golden_prompts": [], "soak_seconds": 0}


@dataclass(frozen=True)
class Figures:
    """Seconds. a_host: of the whole rollout, without the engines' starts, by the number of hosts.
    turns: of each host, from its turn's beginning to its outcome, without its start."""

    a_host: float
    turns: dict[str, float]


def figures(document: Mapping[str, Any], starts: Mapping[str, float]) -> Figures:
    """document: the record of a rollout one by one, complete. starts: of each host's engine. When
    something happened is known to the second. Raises ValueError for another rollout."""
    end = document["end"]
    if not end or end["code"] != 0 or any(len(group) != 1 for group in document["groups"]):
        raise ValueError(f"not a complete rollout of one host at a time: {end}")
    turns: dict[str, float] = {}
    began: float | None = None
    for event in document["events"]:
        at = _seconds(event["when"])
        if event["what"] == "switching":
            began = at
        elif began is not None and (host := event.get("hosts", [""])[0]) in starts:
            turns[host] = at - began - starts[host]
            began = None
    if set(turns) != set(starts):
        raise ValueError(f"turns of {sorted(turns)}, and engines of {sorted(starts)}")
    whole = _seconds(end["when"]) - _seconds(document["began"])
    return Figures((whole - sum(starts.values())) / len(starts), turns)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 when the goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench rollout", description=__doc__)
    parser.add_argument("--hosts", type=int, default=4, choices=range(1, len(NAMES) + 1))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sleep", type=float, default=0.3, help="seconds a stand-in starts for")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("needs root: it makes lab hosts", file=sys.stderr)
        return 1
    names = NAMES[: options.hosts]
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        was_down = not hosts.status()
        try:
            checkout = deployed(Path(directory), names)
            found = [
                measured(checkout, names, number, options.sleep) for number in range(options.rounds)
            ]
        finally:
            put_back(was_down=was_down)
    middle = statistics.median(one.a_host for one in found)
    print(f"{len(names)} hosts, {options.rounds} rounds: {middle:.1f} s a host beyond the engine")
    if middle >= MOST_SECONDS_A_HOST:
        print(f"missed: less than {MOST_SECONDS_A_HOST:.0f} s a host", file=sys.stderr)
        return 1
    return 0


def deployed(directory: Path, names: Sequence[str]) -> Checkout:
    lab_hosts.bring_up(names)
    checkout = Checkout(directory)
    checkout.base["rollout"] = NO_GATES
    checkout.write(*names)
    checkout.deploy().done()
    return checkout


def measured(checkout: Checkout, names: Sequence[str], number: int, sleep: float) -> Figures:
    """One rollout to a release that these hosts have not had."""
    checkout.base["engine"] = rollouts.engine_with(9000 + number, start_seconds=sleep)
    checkout.write(*names)
    began = time.monotonic()
    rollouts.rollout(checkout, "--batch", "1").ended(0)
    whole = time.monotonic() - began
    document = record.newest(checkout.root, NAME)
    assert document is not None
    starts = {name: float(rollouts.golive(name)["start_seconds"]) for name in names}
    found = figures(document, starts)
    shown = ", ".join(f"{name} {seconds:.1f}" for name, seconds in found.turns.items())
    started = json.dumps(starts)
    print(
        f"{found.a_host:.1f} s a host; turns {shown} s; starts {started} s; the whole process, "
        f"plan included, {whole:.1f} s",
        flush=True,
    )
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
