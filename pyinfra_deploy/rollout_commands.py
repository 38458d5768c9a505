"""`fleet rollout`: a change of the fleet, host by host, that stops where it goes wrong."""

from __future__ import annotations

import argparse
import sys
import uuid
from dataclasses import replace
from typing import Any

from pyinfra_deploy import facts_commands, playbook_plan
from pyinfra_deploy.plan_commands import read_hosts
from pyinfra_deploy.rollout import serving
from pyinfra_deploy.rollout.console import confirmed
from pyinfra_deploy.rollout.policy import Batch, Code, Options, groups_foreseen, read_batch
from pyinfra_deploy.rollout_plan import (
    begin,
    by_host,
    coming,
    in_order,
    print_course,
    print_differences,
    print_plan,
)
from pyinfra_deploy.settings.fleet import load_fleet

EPILOG = (
    "exit code: 0 complete, 1 refused with nothing changed, 2 wrong usage, 3 stopped at a host "
    "that failed and serves what it did, 4 to the end with failures that were allowed, 5 a host "
    "serves nothing, 6 a host was lost, 7 paused, 8 another run has a host, 130 interrupted; "
    "docs/rollout.md"
)


def register(commands: Any) -> None:
    """Add `rollout`; `commands` is argparse's object for subcommands, which has no public type."""
    rollout = commands.add_parser(
        "rollout",
        help="bring hosts to what the settings ask for: canary, batches, gates, and back",
        epilog=EPILOG,
    )
    rollout.add_argument(
        "inventory", help="prod, inventories/prod.py or inventories/prod/hosts.yml"
    )
    add_policy(rollout)
    rollout.add_argument(
        "--resume",
        action="store_true",
        help="go on with the one that was paused or interrupted; takes --exclude, --dry and --yes",
    )
    rollout.add_argument(
        "--abandon", action="store_true", help="give up the one that was paused or interrupted"
    )
    rollout.set_defaults(run=_rollout)


def add_policy(parser: argparse.ArgumentParser) -> None:
    """What `fleet rollback` has, too."""
    defaults = Options()
    for option, what in (("--only", "only these"), ("--exclude", "all but these")):
        parser.add_argument(
            option, action="append", default=[], metavar="GROUP",
            help=f"{what}: groups or hosts, with commas",
        )  # fmt: skip
    parser.add_argument(
        "--canary", type=_count, metavar="N",
        help=f"hosts that go first, alone ({defaults.canary}); 0: none",
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=_batch, metavar="25%|N",
        help=f"hosts that go at once after that ({defaults.batch})".replace("%", "%%"),
    )  # fmt: skip
    parser.add_argument("--pause", action="store_true", help="ask before each next group")
    parser.add_argument(
        "--max-failures", type=_count, metavar="N",
        help="hosts that may fail before it stops (0)",
    )  # fmt: skip
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask before it begins")
    parser.add_argument("--dry", action="store_true", help="only the plan")


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return number


def _batch(text: str) -> Batch:
    try:
        return read_batch(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def options_of(arguments: argparse.Namespace) -> Options:
    given = {name: getattr(arguments, name) for name in ("canary", "batch", "max_failures")}
    known = {name: value for name, value in given.items() if value is not None}
    return replace(Options(pause=arguments.pause), **known)


def _not_of_a_resume(arguments: argparse.Namespace) -> str:
    """Options that --resume would have to drop without a word."""
    given = {
        "--only": arguments.only,
        "--pause": arguments.pause,
        "--canary": arguments.canary is not None,
        "--batch": arguments.batch is not None,
        "--max-failures": arguments.max_failures is not None,
    }
    return ", ".join(option for option, there in given.items() if there)


def _rollout(arguments: argparse.Namespace) -> int:
    wrong = _not_of_a_resume(arguments) if arguments.resume else ""
    if wrong:
        print(
            f"--resume goes on as it was begun, without {wrong}. For another course begin a new "
            "one, which goes by what hosts have now: fleet rollout",
            file=sys.stderr,
        )
        return Code.USAGE
    fleet = load_fleet(arguments.inventory)
    if arguments.abandon:
        from pyinfra_deploy.resuming import abandon

        return abandon(fleet, yes=arguments.yes)
    if arguments.resume:
        from pyinfra_deploy.resuming import resume

        return resume(fleet, arguments.exclude, yes=arguments.yes, dry=arguments.dry)
    hosts = facts_commands.chosen(fleet, arguments.only, arguments.exclude)
    read = read_hosts(fleet, hosts)
    code = print_plan(read, leaving_out_stopped=True)
    if code is not None:
        return code
    plans = by_host(read)
    going = in_order(fleet, plans)
    if not going:
        print("nothing to do: every host is as the settings want it")
        return Code.DONE
    options = options_of(arguments)
    served = serving.look(fleet, coming(plans), told=True)
    print_differences(plans, going)
    print_course(groups_foreseen(going, options, served), options, plans, served)
    for line in playbook_plan.lines(fleet, going):
        print(f"\n{line}")
    if playbook_plan.refused(fleet, going):
        return Code.REFUSED
    if arguments.dry:
        return Code.DONE
    if not arguments.yes and not confirmed("Begin?"):
        print("nothing was changed")
        return Code.REFUSED
    return begin(fleet, plans, going, options, uuid.uuid4().hex[:12], served=served)
