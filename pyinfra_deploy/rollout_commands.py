"""`fleet rollout`: a change of the fleet, host by host, that stops where it goes wrong."""

from __future__ import annotations

import argparse
import sys
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pyinfra_deploy import facts_commands, plan_report
from pyinfra_deploy.operations import packing
from pyinfra_deploy.operations.run import own_run
from pyinfra_deploy.plan_commands import Foreseen, Read, read_hosts
from pyinfra_deploy.rollout import foresee, record
from pyinfra_deploy.rollout.console import Console, confirmed
from pyinfra_deploy.rollout.drive import drive
from pyinfra_deploy.rollout.outcome import Outcome
from pyinfra_deploy.rollout.policy import (
    Batch,
    Code,
    Course,
    Kind,
    Options,
    groups_foreseen,
    read_batch,
)
from pyinfra_deploy.rollout.pyinfra_hosts import PyinfraHosts
from pyinfra_deploy.settings.fleet import load_fleet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyinfra_deploy.settings.fleet import Fleet

DEPLOY = packing.ROOT / "deploy.py"
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
        "--resume", action="store_true", help="go on with the one that was paused or interrupted"
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
        "--canary", type=_count, default=defaults.canary, metavar="N",
        help=f"hosts that go first, alone ({defaults.canary}); 0: none",
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=_batch, default=defaults.batch, metavar="25%|N",
        help=f"hosts that go at once after that ({defaults.batch})".replace("%", "%%"),
    )  # fmt: skip
    parser.add_argument("--pause", action="store_true", help="ask before each next group")
    parser.add_argument(
        "--max-failures", type=_count, default=0, metavar="N",
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
    return Options(
        arguments.canary, arguments.batch, arguments.pause, arguments.max_failures
    )  # fmt: skip


def _rollout(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    if arguments.resume:
        from pyinfra_deploy.resuming import resume

        return resume(fleet, yes=arguments.yes)
    hosts = facts_commands.chosen(fleet, arguments.only, arguments.exclude)
    read = read_hosts(fleet, hosts)
    code = print_plan(read)
    if code is not None:
        return code
    plans = by_host(read)
    going = in_order(fleet, [host for host, one in plans.items() if one.changes])
    if not going:
        print("nothing to do: every host is as the settings want it")
        return Code.DONE
    options = options_of(arguments)
    groups = groups_foreseen(going, options)
    _print_differences(plans, going)
    print_course(fleet, groups, options, plans)
    if arguments.dry:
        return Code.DONE
    if not arguments.yes and not confirmed("Begin?"):
        print("nothing was changed")
        return Code.REFUSED
    return begin(fleet, plans, going, options, uuid.uuid4().hex[:12])


def begin(
    fleet: Fleet,
    plans: Mapping[str, Foreseen],
    going: Sequence[str],
    options: Options,
    identity: str,
    course: Course | None = None,
) -> Code:
    """course: of a rollout that is gone on with, whose hosts may be more than those going."""
    wanted = {host: release_of(plans[host]) for host in going}
    generations = {
        host: plan.generation for host in going if (plan := plans[host].plan) is not None
    }
    kept = {
        "id": identity, "kind": "rollout", "inventory": fleet.name, "hosts": wanted,
        "options": {**asdict(options), "batch": str(options.batch)},
    }  # fmt: skip
    run = own_run()
    console = Console(
        record.begin(
            fleet.root, fleet.name, identity, kind="rollout", owner=run.owner, options=options,
            groups=groups_foreseen(going, options),
            hosts={host: told_of(one) for host, one in plans.items()},
        ),
        course or Course(tuple(going), options),
    )  # fmt: skip
    hosts = PyinfraHosts(fleet, identity, run, wanted, DEPLOY, {}, console.line)
    return drive(hosts, console, kept, generations)


def print_plan(read: Read) -> Code | None:
    """As `fleet plan`. The exit code where nothing may be begun, which has then been said."""
    found = [(one.foresight, one.changes) for one in read.found]
    for line in read.printed.splitlines()[-20:] if read.not_read else ():
        print(f"  | {line}", file=sys.stderr)
    for group in plan_report.groups(found):
        print(f"{group.text}\n")
    print(plan_report.summary([foresight for foresight, _ in found], read.not_read))
    refused = [one.foresight.host for one in read.found if one.plan is None]
    if not refused and not read.not_read:
        return None
    names = ",".join([*refused, *read.not_read])
    print(
        f"not begun: {names} cannot be deployed to as they are. Mend what is said above, or leave "
        f"them out: --exclude {names}",
        file=sys.stderr,
    )
    return Code.REFUSED


def by_host(read: Read) -> dict[str, Foreseen]:
    return {one.foresight.host: one for one in read.found}


def in_order(fleet: Fleet, hosts: Sequence[str]) -> list[str]:
    """Engine hosts first: whether a release serves is seen there."""
    return sorted(hosts, key=lambda host: "gpu" not in fleet.hosts[host].groups)


def release_of(one: Foreseen) -> str | None:
    """The release that a host is to run in the end; None before its model's digest is known."""
    if one.plan is None:
        return None
    return one.plan.held.kept if one.plan.held is not None else one.plan.release_id


def told_of(one: Foreseen) -> dict[str, Any]:
    """Of a host's plan, for the record."""
    plan = one.plan
    differences = foresee.differences_of(plan, one.snapshot) if plan is not None else []
    engine = foresee.engine_of(one.snapshot, plan.settings) if plan is not None else {}
    same = Outcome(one.foresight.host, Kind.SAME, release_of(one), engine.get("current"))
    told = {} if one.changes else {"outcome": asdict(same) | {"kind": same.kind.value}}
    return told | {
        "from": engine.get("current"),
        "to": release_of(one),
        "changes": list(one.changes or ()),
        "differences": differences,
        "findings": [
            str(finding) for finding in one.foresight.findings if finding.severity != "note"
        ],
    }


def _print_differences(plans: Mapping[str, Foreseen], going: Sequence[str]) -> None:
    lines = {
        host: foresee.differences_of(plan, plans[host].snapshot)
        for host in going
        if (plan := plans[host].plan) is not None
    }
    for hosts, said in foresee.alike(lines):
        if said:
            print(f"\nwhat differs on {plan_report.host_ranges(hosts)}:")
            for line in said:
                print(f"    {line}")


def print_course(
    fleet: Fleet,
    groups: Sequence[Sequence[str]],
    options: Options,
    plans: Mapping[str, Foreseen],
) -> None:
    print("\nin this order:")
    for line in foresee.group_lines(groups, canary=bool(options.canary)):
        print(f"    {line}")
    engines = [host for host, one in fleet.hosts.items() if "gpu" in one.groups]
    switched = {
        host: (one.plan.settings, foresee.engine_of(one.snapshot, one.plan.settings))
        for host, one in plans.items()
        if one.plan is not None and one.plan.serving and one.plan.go_live
    }
    for line in foresee.downtime(groups, engines, switched):
        print(f"\n{line}")
