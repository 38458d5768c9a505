"""`fleet status`: the fleet at a glance."""

from __future__ import annotations

import datetime
import json
import sys
from typing import TYPE_CHECKING, Any

from pyinfra_deploy import facts_commands
from pyinfra_deploy.plan_commands import read_hosts
from pyinfra_deploy.planning.at_a_glance import GOOD, glance
from pyinfra_deploy.rollout_plan import by_host, release_of
from pyinfra_deploy.settings.fleet import load_fleet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

PARTS = ("engine", "model", "drain", "hold", "certificate", "gpus")
NOT_WELL, NOT_READ = 1, 2
MARKS = {"good": " ", "warn": "!", "bad": "X"}


def register(commands: Any) -> None:
    """Add `status`; `commands` is argparse's object for subcommands, which has no public type."""
    status = commands.add_parser(
        "status",
        help="per host: release, engine, model, drain, certificate, GPUs",
        epilog="exit code: 0 all is well, 1 something is not, 2 some hosts were not read",
    )
    status.add_argument("inventory", help="prod, inventories/prod.py or inventories/prod/hosts.yml")
    facts_commands.add_choice(status)
    status.add_argument("--json", action="store_true", help="for programs")
    status.set_defaults(run=_status)


def _status(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    hosts = facts_commands.chosen(fleet, arguments.limit, arguments.exclude)
    read = read_hosts(fleet, hosts)
    now = datetime.datetime.now(datetime.UTC)
    found = {
        host: glance(
            fleet.hosts[host].settings,
            fleet.hosts[host].groups,
            one.snapshot,
            one.foresight.findings,
            now,
        )
        | {"wanted": release_of(one)}
        for host, one in by_host(read).items()
        if one.snapshot is not None
    }
    missing = [host for host in hosts if host not in found]
    if arguments.json:
        print(json.dumps({"hosts": found, "not_read": missing}, indent=1))
    else:
        for host, one in found.items():
            print(in_lines(host, one))
    for line in read.printed.splitlines()[-20:] if read.not_read else ():
        print(f"  | {line}", file=sys.stderr)
    if missing:
        print(f"NOT READ: {', '.join(missing)}", file=sys.stderr)
        return NOT_READ
    return 0 if all(one["state"] == GOOD for one in found.values()) else NOT_WELL


def in_lines(host: str, found: Mapping[str, Any]) -> str:
    release, wanted = found["release"], found["wanted"]
    other = f" (the settings ask for {wanted})" if wanted and wanted != release else ""
    head = f"{MARKS[found['state']]} {host}"
    lines = [f"{head}: {release}{other}" if release else head]
    lines += [
        f"    {MARKS[part['state']]} {name}: {part['text']}"
        for name in PARTS
        if (part := found[name]) is not None and (part["state"] != GOOD or name != "drain")
    ]
    return "\n".join(lines)
