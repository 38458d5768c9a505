"""`fleet rollout --resume`: going on with what was paused, interrupted or killed.

Where it was is asked of the hosts, so any machine that has the repository can go on: each of them
keeps the whole rollout (files/fleet_host/rollout.py), and says what it runs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyinfra_deploy import rollback_commands
from pyinfra_deploy.facts_commands import chosen
from pyinfra_deploy.plan_commands import read_hosts
from pyinfra_deploy.rollout import asking, others
from pyinfra_deploy.rollout.console import confirmed
from pyinfra_deploy.rollout.policy import Code
from pyinfra_deploy.rollout.pyinfra_hosts import give_up
from pyinfra_deploy.rollout.unfinished import course_of, unfinished
from pyinfra_deploy.rollout_plan import begin, by_host, print_plan, release_of, to_change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyinfra_deploy.plan_commands import Foreseen
    from pyinfra_deploy.settings.fleet import Fleet


def resume(fleet: Fleet, excludes: Sequence[str] = (), *, yes: bool, dry: bool = False) -> int:
    """excludes: hosts or groups that are left out of it from here on."""
    seen = status_of_all(fleet)
    document = unfinished(seen)
    if document is None:
        for host in seen.missing:
            print(f"{host}: {seen.problem(host)}", file=sys.stderr)
        print("there is no rollout to go on with on any host that answers", file=sys.stderr)
        return Code.REFUSED
    kept = chosen(fleet, (), excludes)
    wanted: dict[str, str | None] = {
        host: release
        for host, release in document["hosts"].items()
        if host in kept or host not in fleet.hosts
    }
    if not wanted:
        return _refused(f"--exclude {','.join(excludes)} leaves no host of it")
    document = {**document, "hosts": wanted}
    gone = [host for host in wanted if host not in fleet.hosts]
    if gone:
        return _refused(f"{', '.join(gone)} of it is no longer in the inventory")
    print(
        f"going on with {document['kind']} {document['id']} of {document.get('owner')}, begun "
        f"{document.get('began')}: {len(wanted)} hosts"
    )
    if document["kind"] == "rollback":
        return rollback_commands.resume(fleet, document, seen, yes=yes, dry=dry)
    read = read_hosts(fleet, list(wanted))
    code = print_plan(read)
    if code is not None:
        return code
    plans = by_host(read)
    changed = settings_changed(wanted, plans)
    if changed:
        return _refused(
            f"the settings ask for another release now than when it began, on {', '.join(changed)}"
        )
    course = course_of(document, seen, [host for host, one in plans.items() if to_change(one)])
    print(f"to go: {', '.join(course.waiting) or 'nothing, only its end'}")
    if dry:
        return Code.DONE
    if not yes and not confirmed("Go on?"):
        print("nothing was changed")
        return Code.REFUSED
    return begin(fleet, plans, list(course.hosts), course.options, document["id"], course)


def abandon(fleet: Fleet, *, yes: bool) -> int:
    """Nobody is to go on with what was paused, interrupted or killed; hosts stay as they are."""
    seen = status_of_all(fleet)
    for host in seen.missing:
        print(f"{host}: {seen.problem(host)}", file=sys.stderr)
    left = {host: one for host, one in seen.items() if others.is_unfinished(one)}
    working = [host for host, one in left.items() if others.at_work(one, fleet.name)]
    if working:
        print(
            f"{others.in_words(left[working[0]])} is at work, on {', '.join(working)}: end it "
            "where it runs, with Ctrl-C. If nobody is there any more: fleet lock release "
            f"{fleet.name}",
            file=sys.stderr,
        )
        return Code.LOCKED
    if not left:
        print("there is no rollout to give up on any host that answers", file=sys.stderr)
        return Code.REFUSED
    for host, one in left.items():
        print(f"{host}: {others.in_words(one)}, {one['rollout']['state']}")
    if not yes and not confirmed("Give it up? Hosts stay as they are."):
        print("nothing was changed")
        return Code.REFUSED
    done = give_up(fleet, left, "by the operator")
    for host in done.missing:
        print(f"{host}: NOT DONE: {done.problem(host)}", file=sys.stderr)
    return Code.REFUSED if done.missing else Code.DONE


def _refused(why: str) -> int:
    print(
        f"{why}: begin a new one, which goes by what hosts have now: fleet rollout", file=sys.stderr
    )
    return Code.REFUSED


def status_of_all(fleet: Fleet) -> asking.Answers:
    requests = {
        name: {"engine": host.settings.engine.name if "gpu" in host.groups else None}
        for name, host in fleet.hosts.items()
    }
    return asking.ask(fleet, "rollout status", requests)


def settings_changed(wanted: Mapping[str, str | None], plans: Mapping[str, Foreseen]) -> list[str]:
    """Hosts for which the settings now yield another release than the rollout was begun for."""
    return [
        host
        for host, release in wanted.items()
        if release is not None and host in plans and release_of(plans[host]) not in (None, release)
    ]
