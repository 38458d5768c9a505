"""`fleet lock`: who is at work on which host, and taking a lock away that nobody gives back."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.facts_commands import chosen
from pyinfra_deploy.operations.run import is_dead_run_of_this_machine, own_run
from pyinfra_deploy.rollout import asking
from pyinfra_deploy.rollout.console import confirmed
from pyinfra_deploy.settings.fleet import load_fleet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from pyinfra_deploy.settings.fleet import Fleet

INCOMPLETE = 2


def register(commands: Any) -> None:
    """Add `lock`; `commands` is argparse's object for subcommands, which has no public type."""
    group = commands.add_parser("lock", help="who is at work on which host")
    actions = group.add_subparsers(required=True, metavar="ACTION")
    status = actions.add_parser(
        "status",
        help="owner and age of each host's lock",
        epilog="exit code: 0 all hosts were asked, 2 some were not reached",
    )
    release = actions.add_parser(
        "release",
        help="take locks away from a run that will not give them back",
        description="For a run of another machine that was killed; one of this machine is taken "
        "over by the next run by itself. What its jobs do on hosts goes on to its end.",
    )
    for parser in (status, release):
        parser.add_argument(
            "inventory", help="prod, inventories/prod.py or inventories/prod/hosts.yml"
        )
        parser.add_argument(
            "--limit", action="append", default=[], metavar="HOSTS",
            help="hosts or groups, with commas",
        )  # fmt: skip
    status.add_argument("--json", action="store_true", help="for programs")
    status.set_defaults(run=_status)
    release.add_argument("--yes", "-y", action="store_true", help="do not ask")
    release.set_defaults(run=_release)


def _seen(arguments: argparse.Namespace) -> tuple[Fleet, asking.Answers]:
    fleet = load_fleet(arguments.inventory)
    hosts = chosen(fleet, arguments.limit)
    return fleet, asking.ask(fleet, "rollout status", {host: {"engine": None} for host in hosts})


def _status(arguments: argparse.Namespace) -> int:
    _, seen = _seen(arguments)
    if arguments.json:
        locks = {host: answer["lease"] if answer["live"] else None for host, answer in seen.items()}
        problems = {host: seen.problem(host) for host in seen.missing}
        print(json.dumps({"locks": locks, "not_read": problems}, indent=1))
    else:
        for host, answer in seen.items():
            print(f"{host}: {in_words(answer, time.time())}")
    return _told_missing(seen)


def _told_missing(seen: asking.Answers) -> int:
    for host in seen.missing:
        print(f"{host}: NOT READ: {seen.problem(host)}", file=sys.stderr)
    return INCOMPLETE if seen.missing else 0


def in_words(answer: Mapping[str, Any], now: float) -> str:
    """answer: `rollout status` of a host. now: seconds of Unix time."""
    lease, rollout = answer["lease"], answer.get("rollout") or {}
    if lease is None or not answer["live"]:
        unfinished = rollout.get("state") in ("running", "paused", "interrupted")
        state = f"; {rollout.get('kind')} {rollout.get('id')} of {rollout.get('owner')} is "
        return "free" + (f"{state}{rollout.get('state')}" if unfinished else "")
    machine = str(lease["machine"]).split(":", 1)[0]
    age = duration(now - lease["since"])
    what = f"run {lease['run']}"
    if rollout.get("state") == "running":
        what = f"{rollout.get('kind')} {rollout.get('id')}"
    dead = "; that process is gone" if is_dead_run_of_this_machine(lease) else ""
    return (
        f"held by {lease['owner']} for {age}: {what} on {machine}, process {lease.get('pid')}{dead}"
    )


def duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _release(arguments: argparse.Namespace) -> int:
    fleet, seen = _seen(arguments)
    held = {host: answer for host, answer in seen.items() if answer["live"]}
    for host, answer in held.items():
        print(f"{host}: {in_words(answer, time.time())}")
    if not held:
        print("no host that answers is locked")
        return _told_missing(seen)
    if not arguments.yes and not confirmed("Is it certain that nobody is at work there any more?"):
        print("nothing was changed")
        return 1
    who = own_run().owner
    requests = {host: {"run": answer["lease"]["run"], "who": who} for host, answer in held.items()}
    done = asking.ask(fleet, "rollout unlock", requests)
    for host, answer in done.items():
        word = "free" if answer["released"] else "another run has it since: ask again"
        print(f"{host}: {word}")
    return max(_told_missing(seen), _told_missing(done))
