"""A rollout from its plan to its beginning: what it would do, told, and begun."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pyinfra_deploy import hooks, plan_report
from pyinfra_deploy.operations import packing
from pyinfra_deploy.operations.run import own_run
from pyinfra_deploy.planning.early import built_early
from pyinfra_deploy.rollout import foresee, record, serving
from pyinfra_deploy.rollout.console import Console
from pyinfra_deploy.rollout.drive import drive
from pyinfra_deploy.rollout.outcome import Outcome
from pyinfra_deploy.rollout.playbooks import HostsWithPlaybooks
from pyinfra_deploy.rollout.policy import Code, Course, Kind, Options, groups_foreseen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyinfra_deploy.plan_commands import Foreseen, Read
    from pyinfra_deploy.rollout.serving import Serving
    from pyinfra_deploy.settings.fleet import Fleet

DEPLOY = packing.ROOT / "deploy.py"


def begin(
    fleet: Fleet,
    plans: Mapping[str, Foreseen],
    going: Sequence[str],
    options: Options,
    identity: str,
    course: Course | None = None,
    served: Serving | None = None,
) -> int:
    """course: of a rollout that is gone on with, whose hosts may be more than those going. served:
    what the plan has told of who serves; None where it has not."""
    served = served or serving.look(fleet, coming(plans), told=False)
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
            groups=groups_foreseen(going, options, served),
            hosts={host: told_of(one) for host, one in plans.items()},
        ),
        replace(course or Course(tuple(going), options), serving=served),
    )  # fmt: skip
    waiting = console.course.waiting
    early = tuple(
        host for host in waiting if (plan := plans[host].plan) is not None and built_early(plan)
    )
    # One host is built on in its turn, right away.
    early = early if len(waiting) > 1 else ()
    rolling = HostsWithPlaybooks(
        fleet, identity, run, wanted, DEPLOY, {}, console.line, early, note=console.note
    )
    return hooks.around_rollout(fleet, console, lambda: drive(rolling, console, kept, generations))


def print_plan(read: Read, *, leaving_out_stopped: bool = False) -> Code | None:
    """As `fleet plan`. The exit code where nothing may be begun, which has then been said.

    leaving_out_stopped: hosts that are refused only because their engine is stopped by hand are
    named, and the others go without them.
    """
    found = [(one.foresight, one.changes) for one in read.found]
    for line in read.printed.splitlines()[-20:] if read.not_read else ():
        print(f"  | {line}", file=sys.stderr)
    for group in plan_report.groups(found):
        print(f"{group.text}\n")
    print(plan_report.summary([foresight for foresight, _ in found], read.not_read))
    out = [one.foresight.host for one in read.found if leaving_out_stopped and _stopped(one)]
    if out:
        print(f"left out, since their engines are stopped by hand: {', '.join(out)}")
    refused = [
        one.foresight.host
        for one in read.found
        if one.plan is None and one.foresight.host not in out
    ]
    if not refused and not read.not_read:
        return None
    names = ",".join([*refused, *read.not_read])
    print(
        f"not begun: {names} cannot be deployed to as they are. Mend what is said above, or leave "
        f"them out: --exclude {names}",
        file=sys.stderr,
    )
    return Code.REFUSED


def _stopped(one: Foreseen) -> bool:
    return one.plan is None and {one.id for one in one.foresight.refused} == {"engine.stopped"}


def by_host(read: Read) -> dict[str, Foreseen]:
    return {one.foresight.host: one for one in read.found}


def in_order(fleet: Fleet, plans: Mapping[str, Foreseen]) -> list[str]:
    """The hosts that have something to change, first those on which the release goes live: a canary
    on which nothing is switched would prove nothing."""

    def later(host: str) -> tuple[bool, bool]:
        plan = plans[host].plan
        return "gpu" not in fleet.hosts[host].groups, plan is None or not plan.go_live

    return sorted((host for host, one in plans.items() if to_change(one)), key=later)


def to_change(one: Foreseen) -> list[str]:
    """What a deploy would change, but for the lock of a run that is dead, which is taken over."""
    return replace(one.plan, ended_run="").reasons() if one.plan is not None else []


def coming(plans: Mapping[str, Foreseen]) -> dict[str, str]:
    """{host: model} of those whose engine is switched, or stopped for a driver."""
    return {
        host: plan.settings.served_model_name
        for host, one in plans.items()
        if (plan := one.plan) is not None and (plan.go_live or plan.driver is not None)
    }


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
    told = (
        {}
        if plan is None or to_change(one)
        else {"outcome": asdict(same) | {"kind": same.kind.value}}
    )
    return told | {
        "model": coming({same.host: one}).get(same.host),
        "from": engine.get("current"),
        "to": release_of(one),
        "changes": list(one.changes or ()),
        "differences": differences,
        "findings": [
            str(finding) for finding in one.foresight.findings if finding.severity != "note"
        ],
    }


def print_differences(plans: Mapping[str, Foreseen], going: Sequence[str]) -> None:
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
    groups: Sequence[Sequence[str]],
    options: Options,
    plans: Mapping[str, Foreseen],
    served: Serving,
) -> None:
    print("\nin this order:")
    for line in foresee.group_lines(groups, canary=bool(options.canary), coming=served.coming):
        print(f"    {line}")
    switched = {
        host: (one.plan.settings, foresee.engine_of(one.snapshot, one.plan.settings))
        for host, one in plans.items()
        if one.plan is not None and one.plan.serving and one.plan.go_live
    }
    for line in foresee.downtime(groups, served, switched):
        print(f"\n{line}")
