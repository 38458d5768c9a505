"""`fleet rollout --resume`: going on with what was paused, interrupted or killed.

Where it was is asked of the hosts, so any machine that has the repository can go on: each of them
keeps the whole rollout (files/fleet_host/rollout.py), and says what it runs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.plan_commands import read_hosts
from pyinfra_deploy.rollout import asking, outcome
from pyinfra_deploy.rollout.console import confirmed
from pyinfra_deploy.rollout.drive import UNFINISHED
from pyinfra_deploy.rollout.policy import Code, Course, Kind, Options, read_batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.plan_commands import Foreseen
    from pyinfra_deploy.settings.fleet import Fleet


def resume(fleet: Fleet, *, yes: bool) -> int:
    from pyinfra_deploy import rollback_commands, rollout_commands

    seen = status_of_all(fleet)
    document = unfinished(seen)
    if document is None:
        for host in seen.missing:
            print(f"{host}: {seen.problem(host)}", file=sys.stderr)
        print("there is no rollout to go on with on any host that answers", file=sys.stderr)
        return Code.REFUSED
    wanted: dict[str, str | None] = dict(document["hosts"])
    gone = [host for host in wanted if host not in fleet.hosts]
    if gone:
        return _refused(f"{', '.join(gone)} of it is no longer in the inventory")
    print(
        f"going on with {document['kind']} {document['id']} of {document.get('owner')}, begun "
        f"{document.get('began')}: {len(wanted)} hosts"
    )
    if document["kind"] == "rollback":
        return rollback_commands.resume(fleet, document, seen, yes=yes)
    read = read_hosts(fleet, list(wanted))
    code = rollout_commands.print_plan(read)
    if code is not None:
        return code
    plans = rollout_commands.by_host(read)
    changed = settings_changed(wanted, plans)
    if changed:
        return _refused(
            f"the settings ask for another release now than when it began, on {', '.join(changed)}"
        )
    course = course_of(document, seen, plans)
    print(f"to go: {', '.join(course.waiting) or 'nothing, only its end'}")
    if not yes and not confirmed("Go on?"):
        print("nothing was changed")
        return Code.REFUSED
    return rollout_commands.begin(
        fleet, plans, list(course.hosts), course.options, document["id"], course
    )


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


def unfinished(seen: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The newest one of which some host says that it has not ended."""
    found = [
        document
        for answer in seen.values()
        if isinstance(document := answer.get("rollout"), dict)
        and document.get("state") in UNFINISHED
    ]
    return max(found, key=lambda one: str(one.get("began")), default=None)


def settings_changed(wanted: Mapping[str, str | None], plans: Mapping[str, Foreseen]) -> list[str]:
    """Hosts for which the settings now yield another release than the rollout was begun for."""
    from pyinfra_deploy.rollout_commands import release_of

    return [
        host
        for host, release in wanted.items()
        if release is not None and host in plans and release_of(plans[host]) not in (None, release)
    ]


def options_of(document: Mapping[str, Any]) -> Options:
    kept = document["options"]
    return Options(kept["canary"], read_batch(kept["batch"]), kept["pause"], kept["max_failures"])


def course_of(
    document: Mapping[str, Any],
    seen: Mapping[str, Mapping[str, Any]],
    plans: Mapping[str, Foreseen] | None = None,
) -> Course:
    """Where it was. plans: a host that has still something to change has its turn again, whatever
    it serves. Whoever goes on has agreed to what there is."""
    outcomes = {}
    for host, release in document["hosts"].items():
        found = outcome.from_status(host, document["id"], release, seen.get(host))
        if found is None:
            continue
        good = found.kind in (Kind.LIVE, Kind.SAME)
        if good and plans is not None and plans[host].changes:
            continue
        outcomes[host] = found.kind
    return Course(tuple(document["hosts"]), options_of(document), outcomes, agreed=len(outcomes))
