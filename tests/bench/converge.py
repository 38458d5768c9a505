"""A converge that changes nothing, beside the same tasks under ansible-playbook, in one run.

Hosts of the lab with the stand-in engine, converged first. Then, round by round, pyinfra and
Ansible in turn on 1, 3, 6 and 10 of them, each a whole process as an operator starts it. Exit code
1 when a run changes something, or a goal is missed: see `missed`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import hosts, lifecycle
from lab.hub import daemon
from lab.hub.places import hub_directory
from lab.layout import current_layout
from pyinfra_deploy.deploys.artefacts import artefacts_for
from pyinfra_deploy.operations import packing
from pyinfra_deploy.planning import gateway_plan, host_files, wanted
from pyinfra_deploy.settings import load_fleet
from tests.bench import lab_hosts
from tests.hosts import lab_session, pyinfra_run
from tests.hosts.standin_inventory import NAME, Checkout

if TYPE_CHECKING:
    from collections.abc import Sequence

COUNTS = (1, 3, 6, 10)
# At 6 hosts at least so many times faster than Ansible; 10 hosts at most so many times one.
LEAST_RATIO, MOST_TIMES = 5.0, 2.0
NAMES = tuple(f"gpu{number}" for number in range(111, 121))
GROUPS = frozenset({"gpu", "gateway"})
HEAD = (
    "| hosts | pyinfra s (least to most) | CPU s | Ansible s (least to most) | CPU s | ratio |\n"
    "|---|---|---|---|---|---|"
)
PLAYBOOK = Path(__file__).with_name("converge.yml")


@dataclass
class Timings:
    """Wall and CPU seconds of the control machine's process tree, one entry a round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def middle(self) -> float:
        return statistics.median(self.wall)

    def row(self) -> str:
        least, most = min(self.wall), max(self.wall)
        return f"{self.middle:.2f} ({least:.2f} to {most:.2f}) | {statistics.median(self.cpu):.2f}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench converge", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("needs root: it makes lab hosts", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        was_down = not hosts.status()
        try:
            checkout = converged(Path(directory))
            goals = missed(measure(checkout, options.rounds))
        finally:
            put_back(was_down=was_down)
    for goal in goals:
        print(f"missed: {goal}", file=sys.stderr)
    return int(bool(goals))


def converged(directory: Path) -> Checkout:
    """Ten hosts that the deploy has brought to where nothing is left to do."""
    lab_hosts.bring_up(NAMES)
    checkout = Checkout(directory)
    checkout.write(*NAMES)
    checkout.deploy().done()
    again = checkout.deploy().done()
    if not again.unchanged:
        raise SystemExit(f"a second run changed something:\n{again.log}")
    return checkout


def measure(checkout: Checkout, rounds: int) -> dict[tuple[str, int], Timings]:
    """(tool, number of hosts) -> its timings. Prints a row of the table as soon as it is known:
    Ansible takes minutes a round."""
    variables = checkout.root / "ansible-variables.json"
    variables.write_text(json.dumps(ansible_variables(checkout)))
    found: dict[tuple[str, int], Timings] = {}
    print(HEAD, flush=True)
    for count in COUNTS:
        checkout.write(*NAMES[:count])
        ours = pyinfra_run.command(f"inventories/{NAME}.py")
        theirs = [
            *(str(pyinfra_run.BIN / "ansible-playbook"), "-i", f"inventories/{NAME}/hosts.yml"),
            *("-e", f"@{variables}", "-e", f"chosen={NAME}", "-f", "10", str(PLAYBOOK)),
        ]
        for round_number in range(rounds + 1):
            for tool, command in (("pyinfra", ours), ("ansible", theirs)):
                wall, cpu = run(tool, command, checkout.root)
                if round_number:  # the first one warms caches
                    timings = found.setdefault((tool, count), Timings())
                    timings.wall.append(wall)
                    timings.cpu.append(cpu)
        ours_here, theirs_here = found["pyinfra", count], found["ansible", count]
        shown = f"{ours_here.row()} | {theirs_here.row()} | {ratio(found, count):.1f}"
        print(f"| {count} | {shown} |", flush=True)
    print(f"\n10 hosts take {times_one(found):.2f} times one.")
    return found


def ratio(found: dict[tuple[str, int], Timings], count: int) -> float:
    """How many times longer Ansible takes."""
    return found["ansible", count].middle / found["pyinfra", count].middle


def times_one(found: dict[tuple[str, int], Timings]) -> float:
    """How many times longer 10 hosts take than one."""
    return found["pyinfra", 10].middle / found["pyinfra", 1].middle


def missed(found: dict[tuple[str, int], Timings]) -> list[str]:
    """The goals that the medians do not reach, in words."""
    goals = []
    if ratio(found, 6) < LEAST_RATIO:
        goals.append(f"{LEAST_RATIO:g} times faster than Ansible at 6 hosts: {ratio(found, 6):.1f}")
    if times_one(found) > MOST_TIMES:
        goals.append(f"10 hosts in {MOST_TIMES:g} times the time of one: {times_one(found):.2f}")
    return goals


def is_without_change(tool: str, stdout: str) -> bool:
    """By pyinfra's results (--json), or by every line of Ansible's recap."""
    if tool == "pyinfra":
        return pyinfra_run.Ran(0, "", pyinfra_run.results_of(stdout)).unchanged
    return "changed=0" in stdout and not re.search(r"\bchanged=[1-9]", stdout)


def run(tool: str, command: list[str], root: Path) -> tuple[float, float]:
    """(wall, CPU) seconds of a run. SystemExit with its output when it fails or changes a thing."""
    environment = pyinfra_run.environment() | {"ANSIBLE_PIPELINING": "1", "ANSIBLE_NOCOLOR": "1"}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0 or not is_without_change(tool, done.stdout):
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ansible_variables(checkout: Checkout) -> dict[str, Any]:
    """What the playbook compares: the same values that the deploy compares."""
    fleet = load_fleet(NAME, checkout.root)
    settings = fleet.hosts[NAMES[0]].settings
    data = {"name": NAME, "directory": str(fleet.directory), "root": str(fleet.root)}
    artefacts = artefacts_for(data, settings)
    system = json.loads(
        lab_session.shell(NAMES[0], "/srv/llm/bin/fleet-host host facts </dev/null")
    )
    program = checkout.root / "fleet-host"
    program.write_bytes(packing.host_program())
    record = json.loads(lab_session.shell(NAMES[0], f"cat {wanted.model_directory(settings)}.json"))
    rendered = gateway_plan.nginx_files(settings, system)
    ((nginx_path, nginx_text),) = rendered.files.items()
    environments = lab_session.shell(NAMES[0], "ls -d /srv/llm/runtimes/*-* /srv/llm/tools/*-*")
    return {
        "packages": wanted.packages(GROUPS, settings, {"os": {}}),
        "users": list(wanted.service_users(GROUPS)),
        "directories": [
            {"path": path, "mode": mode, "owner": owner, "group": group}
            for path, (mode, owner, group) in wanted.directories(settings.llm_root).items()
        ],
        "files": [
            {"path": file.path, "content": file.content, "mode": file.mode}
            for file in host_files.managed_files(GROUPS, settings, artefacts)
        ],
        "program": {"path": "/srv/llm/bin/fleet-host", "src": str(program)},
        "environments": environments.split(),
        "model_files": [
            {"path": f"{wanted.model_directory(settings)}/{file['path']}", "size": file["size"]}
            for file in record["files"]
        ],
        "current": "/srv/llm/engines/main/current",
        "started": "/run/llm-engine-main/started.json",
        "units": ["llm-engine@main.service", "llm-gateway.service", "nginx.service"],
        "keys": {
            "path": "/srv/llm/gateway/keys.json",
            "content": (fleet.directory / "keys.json").read_text(),
        },
        "nginx": {"path": nginx_path, "content": nginx_text},
    }


def put_back(*, was_down: bool) -> None:
    if was_down:
        daemon.stop(hub_directory())
        hosts.down()
    else:
        with hosts.exclusive_as_root("down"):
            lab = lifecycle.open_lab(current_layout())
            lab_session.drop(lab, NAMES)
            lifecycle.tidy(lab)
