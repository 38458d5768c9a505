"""`fleet deploy`: pyinfra's deploy.py with the plan first; `fleet drift`: what it would change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from pyinfra_deploy import facts_commands, plan_report, playbook_plan, recorded
from pyinfra_deploy.operations import packing
from pyinfra_deploy.operations.run import own_run
from pyinfra_deploy.plan_commands import read_hosts
from pyinfra_deploy.planning.rejected import without_gates
from pyinfra_deploy.rollout import foresee, playbooks
from pyinfra_deploy.rollout.console import confirmed
from pyinfra_deploy.rollout_plan import by_host, print_plan, told_of
from pyinfra_deploy.settings.fleet import load_fleet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from pyinfra_deploy.plan_commands import Foreseen
    from pyinfra_deploy.settings.fleet import Fleet

DRIFTED, UNKNOWN, INTERRUPTED = 1, 2, 130
DEPLOY = packing.ROOT / "deploy.py"


def register(commands: Any) -> None:
    """`commands` is argparse's object for subcommands, which has no public type."""
    deploy = commands.add_parser(
        "deploy",
        help="pyinfra INVENTORY deploy.py, with the plan first",
        epilog="exit code: pyinfra's own; 1 refused, or somebody said no; 130 interrupted",
    )
    drift = commands.add_parser(
        "drift",
        help="whether hosts are as the settings want them",
        epilog="exit code: 0 they are, 1 some differ, 2 some could not be judged",
    )
    for parser in (deploy, drift):
        parser.add_argument(
            "inventory", help="prod, inventories/prod.py or inventories/prod/hosts.yml"
        )
        facts_commands.add_choice(parser)
    deploy.add_argument("--yes", "-y", action="store_true", help="do not ask before it begins")
    deploy.set_defaults(run=_deploy)
    drift.add_argument("--json", action="store_true", help="for programs")
    drift.set_defaults(run=_drift)


def _deploy(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    hosts = facts_commands.chosen(fleet, arguments.limit, arguments.exclude)
    read = read_hosts(fleet, hosts)
    code = print_plan(read)
    if code is not None:
        return code
    taken_back = [
        finding
        for one in read.found
        if one.plan is not None
        for finding in without_gates(one.plan.findings)
    ]
    if taken_back:
        for finding in taken_back:
            print(f"not begun: {finding}", file=sys.stderr)
        return 1
    going = [host for host, one in by_host(read).items() if one.changes]
    playing = playbooks.any_of(fleet, hosts)
    if not going and not playing:
        print("nothing to do: every host is as the settings want it")
        return 0
    for line in playbook_plan.lines(fleet, hosts):
        print(line)
    if playbook_plan.refused(fleet, hosts):
        return 1
    serving = [one for one in read.found if one.plan and one.plan.serving and one.plan.go_live]
    if len(serving) > 1:
        print(
            f"{len(serving)} hosts that serve are switched, one after the other. With a canary, "
            f"gates and a soak: fleet rollout {fleet.name}"
        )
    concerned = plan_report.host_ranges(hosts if playing else going)
    if not arguments.yes and not confirmed(f"Deploy to {concerned}?"):
        print("nothing was changed")
        return 1
    owner = own_run().owner
    facts = {"kind": "deploy", "owner": owner, "hosts": hosts}
    run = with_playbooks if playing else run_pyinfra
    told = {host: told_of(one) for host, one in by_host(read).items()}
    kept = recorded.begin(fleet, "deploy", owner, hosts, told)
    return recorded.run(fleet, facts, kept, lambda: run(fleet, hosts, recorded.teller(kept)))


def with_playbooks(
    fleet: Fleet, hosts: Sequence[str], on_line: Callable[[str], None] = print
) -> int:
    """pyinfra's exit code, 1 where a playbook failed. A host on which one fails is left out of what
    comes next; after a pyinfra that failed none runs, since it does not say on which hosts."""
    code = failed = 0
    going = list(hosts)
    try:
        for phase in playbook_plan.PHASES:
            played = playbooks.play(fleet, going, phase, on_line)
            for host, said in played.failed.items():
                failed = 1
                print(f"{host}: {said['what']}: {said['why']}", file=sys.stderr)
            going = [host for host in going if host not in played.failed]
            if phase == "before":
                code = run_pyinfra(fleet, going, on_line) if going else 0
            if code:
                print("the playbooks of ansible.after were not run", file=sys.stderr)
                return code
    except KeyboardInterrupt:
        return INTERRUPTED
    return failed


def run_pyinfra(fleet: Fleet, hosts: Sequence[str], on_line: Callable[[str], None] = print) -> int:
    """In the foreground: Ctrl-C is pyinfra's, which ends with 130."""
    names = ["@local" if fleet.hosts[host].is_local else host for host in hosts]
    limits = [] if len(names) == len(fleet.hosts) else names
    line = [
        sys.executable, "-m", "pyinfra", "-y",
        *(word for name in limits for word in ("--limit", name)),
        f"inventories/{fleet.name}.py", str(DEPLOY),
    ]  # fmt: skip
    with subprocess.Popen(
        line, cwd=fleet.root, env=os.environ | {"PYINFRA_PROGRESS": "off"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as child:  # fmt: skip
        assert child.stdout is not None
        while True:
            try:
                for said in child.stdout:
                    on_line(said.rstrip("\n"))
                return child.wait()
            except KeyboardInterrupt:
                continue  # the terminal has told pyinfra too, which ends by itself


def _drift(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    hosts = facts_commands.chosen(fleet, arguments.limit, arguments.exclude)
    read = read_hosts(fleet, hosts)
    found = by_host(read)
    lines = {host: drift_of(one) for host, one in found.items()}
    unknown = [*read.not_read, *(host for host, said in lines.items() if said is None)]
    if arguments.json:
        print(json.dumps({"hosts": lines, "not_read": read.not_read}, indent=1))
    else:
        for same, said in foresee.alike({host: one or () for host, one in lines.items()}):
            known = [host for host in same if host not in unknown]
            if known:
                print(f"{plan_report.host_ranges(known)}: {'as it should be' if not said else ''}")
            for line in said:
                print(f"    {line}")
        for host in unknown:
            why = [str(one) for one in found[host].foresight.refused] if host in found else []
            print(f"{host}: NOT JUDGED: {'; '.join(why) or 'not read'}", file=sys.stderr)
    if any(lines.values()):
        return DRIFTED
    return UNKNOWN if unknown else 0


def drift_of(one: Foreseen) -> list[str] | None:
    """What a deploy would change, and what hands have changed that it leaves; None: not known."""
    if one.plan is None:
        return None
    left = [
        f"{finding.subject}: {finding.message}"
        for finding in one.foresight.findings
        if finding.id == "engine.drained"
    ]
    held = one.plan.held
    if held is not None:
        left.append(f"held at {held.kept} by {held.who}: {held.why}")
    return [*one.plan.reasons(), *foresee.differences_of(one.plan, one.snapshot), *left]
