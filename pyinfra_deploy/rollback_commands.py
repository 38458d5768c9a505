"""`fleet rollback` to a release that hosts have kept, and `fleet unhold`, which ends its hold."""

from __future__ import annotations

import json
import sys
import tempfile
import uuid
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy import facts_commands, hooks
from pyinfra_deploy.operations.run import own_run
from pyinfra_deploy.plan_commands import read_hosts
from pyinfra_deploy.rollout import asking, foresee, record, rollback, serving
from pyinfra_deploy.rollout.console import Console, confirmed
from pyinfra_deploy.rollout.drive import drive
from pyinfra_deploy.rollout.policy import Code, Course, Options, groups_foreseen
from pyinfra_deploy.rollout.pyinfra_hosts import PyinfraHosts
from pyinfra_deploy.rollout.unfinished import course_of
from pyinfra_deploy.rollout_commands import EPILOG, add_policy, options_of
from pyinfra_deploy.settings.fleet import load_fleet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from pyinfra_deploy.rollout.rollback import Target
    from pyinfra_deploy.rollout.serving import Serving
    from pyinfra_deploy.settings.fleet import Fleet
    from pyinfra_deploy.settings.schema import Settings

DEPLOY = Path(__file__).resolve().parent / "deploys" / "roll_back.py"
INVENTORY = "prod, inventories/prod.py or inventories/prod/hosts.yml"


def register(commands: Any) -> None:
    """Add `rollback` and `unhold`; `commands` is argparse's object for subcommands."""
    back = commands.add_parser(
        "rollback",
        help="take hosts back to a release that they have kept, and hold them there",
        description="Without RELEASE: hosts that run the newest release that was rolled out go "
        "back to the one before it; the others are only held where they are.",
        epilog=EPILOG,
    )
    back.add_argument("inventory", help=INVENTORY)
    back.add_argument("release", nargs="?", default="", help="a release's ID, or its beginning")
    back.add_argument("--why", default="", help="kept with the hold, for who reads it next")
    add_policy(back)
    back.set_defaults(run=_rollback)
    unhold = commands.add_parser(
        "unhold", help="let the next deploy bring what a rollback has taken back"
    )
    unhold.add_argument("inventory", help=INVENTORY)
    unhold.add_argument(
        "--limit", action="append", default=[], metavar="HOSTS", help="hosts or groups, with commas"
    )
    unhold.set_defaults(run=_unhold)


def _rollback(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    chosen = facts_commands.chosen(fleet, arguments.only, arguments.exclude)
    hosts = [host for host in chosen if "gpu" in fleet.hosts[host].groups]
    kept = kept_releases(fleet, hosts)
    if kept.missing:
        for host in kept.missing:
            print(f"{host}: {kept.problem(host)}", file=sys.stderr)
        names = ",".join(kept.missing)
        print(f"not begun: leave them out with --exclude {names}", file=sys.stderr)
        return Code.REFUSED
    # The plan may refuse a host, or not know its model: its release is then not known either.
    wanted = {one.foresight.host: one.plan.release_id for one in read_hosts(fleet, hosts).found
              if one.plan is not None}  # fmt: skip
    found = rollback.targets(kept, wanted, arguments.release)
    if isinstance(found, str):
        print(found, file=sys.stderr)
        for line in rollback.listed(kept):
            print(f"    {line}", file=sys.stderr)
        commands = list(rollback.commands(kept, fleet.name))
        if commands:
            print("to take hosts to what each ran before:", file=sys.stderr)
        for line in commands:
            print(f"    {line}", file=sys.stderr)
        return Code.REFUSED
    untouched = [host for host in chosen if host not in found]
    if untouched:
        print(f"not touched: {', '.join(untouched)} (no engine, or it runs no release)")
    # Those that are switched first: the canary is one of them.
    found = dict(sorted(found.items(), key=lambda one: not one[1].switch))
    options = options_of(arguments)
    switched = [host for host, target in found.items() if target.switch]
    served = serving.look(fleet, coming(fleet, found, kept), told=True)
    _print(fleet, found, kept, groups_foreseen(list(found), options, served), served)
    if arguments.dry:
        return Code.DONE
    question = f"Take {len(switched)} of {len(found)} hosts back?"
    if not arguments.yes and not confirmed(question):
        print("nothing was changed")
        return Code.REFUSED
    why = arguments.why or "no reason was given"
    return _begin(fleet, found, why, options, uuid.uuid4().hex[:12], served)


def coming(
    fleet: Fleet,
    targets: Mapping[str, Target],
    kept: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, str]:
    """{host: model} of those that are switched. kept: with the names of their releases' models."""
    found: dict[str, str] = {}
    for host, one in targets.items():
        release = ((kept or {}).get(host) or {}).get("releases", {}).get(one.kept) or {}
        name = release.get("served_model_name") or fleet.hosts[host].settings.served_model_name
        found |= {host: str(name)} if one.switch else {}
    return found


def kept_releases(fleet: Fleet, hosts: Sequence[str]) -> asking.Answers:
    requests = {host: {"engine": fleet.hosts[host].settings.engine.name} for host in hosts}
    return asking.ask(fleet, "service releases", requests)


def _print(
    fleet: Fleet,
    targets: Mapping[str, Target],
    kept: Mapping[str, Mapping[str, Any]],
    groups: Sequence[Sequence[str]],
    served: Serving,
) -> None:
    lines = {host: [rollback.in_words(one, kept[host])] for host, one in targets.items()}
    for hosts, said in foresee.alike(lines):
        print(f"{', '.join(hosts)}: {said[0]}")
    print("\nin this order:")
    for line in foresee.group_lines(groups, canary=False):
        print(f"    {line}")
    switched: dict[str, tuple[Settings, Mapping[str, Any]]] = {
        host: (fleet.hosts[host].settings, {}) for host, one in targets.items() if one.switch
    }
    for line in foresee.downtime(groups, served, switched):
        print(f"\n{line}")


def _begin(
    fleet: Fleet,
    targets: Mapping[str, Target],
    why: str,
    options: Options,
    identity: str,
    served: Serving,
    course: Course | None = None,
) -> int:
    run = own_run()
    wanted = {host: one.kept for host, one in targets.items()}
    kept = {
        "id": identity, "kind": "rollback", "inventory": fleet.name, "hosts": wanted, "why": why,
        "rejected": {host: list(one.rejected) for host, one in targets.items()},
        "options": {**asdict(options), "batch": str(options.batch)},
    }  # fmt: skip
    told: dict[str, dict[str, Any]] = {
        host: {"from": one.serves, "to": one.kept, "changes": [], "differences": [], "findings": []}
        for host, one in targets.items()
    }
    console = Console(
        record.begin(
            fleet.root, fleet.name, identity, kind="rollback", owner=run.owner, options=options,
            groups=groups_foreseen(list(targets), options, served), hosts=told,
        ),
        replace(course or Course(tuple(targets), options), serving=served),
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="fleet-rollback-") as directory:
        path = Path(directory) / "targets.json"
        path.write_text(
            json.dumps(
                {
                    host: {
                        "kept": one.kept, "rejected": list(one.rejected), "who": run.owner,
                        "why": why, "switch": one.switch,
                    }
                    for host, one in targets.items()
                }
            )
        )  # fmt: skip
        hosts = PyinfraHosts(
            fleet, identity, run, dict(wanted), DEPLOY, {"targets": str(path)}, console.line
        )
        return hooks.around_rollout(fleet, console, lambda: drive(hosts, console, kept, {}))


def resume(
    fleet: Fleet,
    document: Mapping[str, Any],
    seen: asking.Answers,
    *,
    yes: bool,
    dry: bool = False,
) -> int:
    """Of a rollback that was interrupted."""
    course = course_of(document, seen)
    held = {
        host: rollback.Target(
            kept=release,
            rejected=tuple(document["rejected"][host]),
            serves=(engine := (seen.get(host) or {}).get("engine") or {}).get("started"),
            switch=engine.get("started") != release,
        )
        for host, release in document["hosts"].items()
    }
    # A host that serves the release may have been killed before its hold was written.
    outcomes = {
        host: kind for host, kind in course.outcomes.items() if _holds(seen, host, held[host].kept)
    }
    course = Course(course.hosts, course.options, outcomes, agreed=len(outcomes))
    print(f"to go: {', '.join(course.waiting) or 'nothing, only its end'}")
    if dry:
        return Code.DONE
    if not yes and not confirmed("Go on?"):
        print("nothing was changed")
        return Code.REFUSED
    served = serving.look(fleet, coming(fleet, held), told=False)
    return _begin(fleet, held, document["why"], course.options, document["id"], served, course)


def _holds(seen: Mapping[str, Mapping[str, Any]], host: str, kept: str) -> bool:
    hold = ((seen.get(host) or {}).get("engine") or {}).get("hold") or {}
    return bool(hold.get("kept") == kept)


def _unhold(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    hosts = [
        host
        for host in facts_commands.chosen(fleet, arguments.limit)
        if "gpu" in fleet.hosts[host].groups
    ]
    who = own_run().owner
    requests = {
        host: {"engine": fleet.hosts[host].settings.engine.name, "who": who} for host in hosts
    }
    answers = asking.ask(fleet, "hold end", requests)
    for host, answer in answers.items():
        hold = answer.get("hold") or {}
        said = f"is no longer held at {hold.get('kept')}" if answer["changed"] else "was not held"
        print(f"{host}: {said}")
    for host in answers.missing:
        print(f"{host}: NOT DONE: {answers.problem(host)}", file=sys.stderr)
    return Code.REFUSED if answers.missing else Code.DONE
