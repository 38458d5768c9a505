"""`fleet uninstall`: take everything of ours off hosts, models kept unless asked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.facts_commands import chosen
from pyinfra_deploy.operations.lease import TTL_SECONDS
from pyinfra_deploy.operations.run import own_run, stealing
from pyinfra_deploy.rollout import asking
from pyinfra_deploy.settings.fleet import load_fleet

if TYPE_CHECKING:
    import argparse

REMOVE_SECONDS = 3600


def register(commands: Any) -> None:
    """Add `uninstall`; `commands` is argparse's object for subcommands."""
    uninstall = commands.add_parser(
        "uninstall",
        help="take everything of ours off hosts; models stay unless asked",
        description="Stops and removes units, Nginx's configuration, users, environments and "
        "state. Distribution packages, the driver and what others have changed stay.",
        epilog="exit code: 0 done, 1 refused, not reached, or somebody said no",
    )
    uninstall.add_argument(
        "inventory", help="prod, inventories/prod.py or inventories/prod/hosts.yml"
    )
    uninstall.add_argument("hosts", nargs="+", metavar="HOST", help="hosts or groups")
    uninstall.add_argument("--models", action="store_true", help="models and event logs too")
    uninstall.add_argument("--dry", action="store_true", help="only what would go")
    uninstall.add_argument("--yes", "-y", action="store_true", help="do not ask")
    uninstall.set_defaults(run=_uninstall)


def _uninstall(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    hosts = chosen(fleet, arguments.hosts)
    lease = own_run().as_spec() | {"ttl_seconds": TTL_SECONDS, "generation_seen": None}
    request = {"lease": lease, "models": arguments.models, "dry": True}
    would = asking.ask(fleet, "uninstall", dict.fromkeys(hosts, request))
    for host, answer in would.items():
        print(f"{host}: stops {len(answer['units'])} units and removes:")
        for path in answer["paths"]:
            print(f"    {path}")
        for text in answer["kept"]:
            print(f"    stays: {text}")
    if would.missing or arguments.dry:
        return _told_missing(would)
    if not arguments.yes and not _typed(fleet.name, hosts):
        print("nothing was changed")
        return 1
    # A run of this machine that was killed holds nobody up.
    there = asking.ask(fleet, "rollout status", {host: {"engine": None} for host in hosts})
    requests = {
        host: request | {"dry": False, "lease": lease | stealing(there.get(host, {}).get("lease"))}
        for host in hosts
    }
    done = asking.ask(fleet, "uninstall", requests, REMOVE_SECONDS)
    for host in done:
        print(f"{host}: uninstalled")
    return _told_missing(done)


def _typed(name: str, hosts: list[str]) -> bool:
    print(f"{', '.join(hosts)} will serve nothing any more.")
    try:
        return input(f"Type the inventory's name ({name}) to go on: ").strip() == name
    except EOFError:
        return False


def _told_missing(answers: asking.Answers) -> int:
    for host in answers.missing:
        print(f"{host}: NOT DONE: {answers.problem(host)}", file=sys.stderr)
    return 1 if answers.missing else 0
