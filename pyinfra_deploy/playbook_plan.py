"""Playbooks in a plan: which run where, whether they can be read, and what they would change."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyinfra_deploy import plan_report
from pyinfra_deploy.rollout import foresee, playbooks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyinfra_deploy.rollout.playbooks import Phase, Played
    from pyinfra_deploy.settings.fleet import Fleet

PHASES: tuple[Phase, ...] = ("before", "after")


def lines(fleet: Fleet, hosts: Sequence[str]) -> Iterator[str]:
    """What the settings name for these hosts; nothing where they name none."""
    for section, same in playbooks.sections(fleet, hosts):
        named = [
            f"{phase}: {', '.join(getattr(section, phase))}"
            for phase in PHASES
            if getattr(section, phase)
        ]
        if named:
            yield f"playbooks on {plan_report.host_ranges(same)}: {'; '.join(named)}"


def refused(fleet: Fleet, hosts: Sequence[str]) -> bool:
    """Whether one cannot be read by Ansible, or what it requires is not to be had: said, with why.
    No host is touched."""
    wrong = False
    for phase in PHASES:
        if not playbooks.any_of(fleet, hosts, phase):
            continue
        played = playbooks.play(fleet, hosts, phase, lambda _line: None, syntax=True)
        for said in {str(problem): problem for problem in played.failed.values()}.values():
            wrong = True
            print(f"ansible.{phase}: {said['what']}: {said['why']}", file=sys.stderr)
            for line in said["detail"]:
                print(f"  | {line}", file=sys.stderr)
            print(f"  fix: {said['fix']}", file=sys.stderr)
    return wrong


def check_mode(fleet: Fleet, hosts: Sequence[str]) -> dict[str, Any]:
    """{HOST: {before: {changes: [text], failed: text or null}, after: ...}} of hosts and phases
    that have playbooks. Ansible connects to them, and changes nothing."""
    found: dict[str, Any] = {}
    for phase in PHASES:
        if not playbooks.any_of(fleet, hosts, phase):
            continue
        played = playbooks.play(fleet, hosts, phase, _progress, check=True)
        for host in hosts:
            if getattr(fleet.hosts[host].settings.ansible, phase):
                found.setdefault(host, {})[phase] = _of_host(played, host)
    return found


def _progress(line: str) -> None:
    if line.startswith("playbook "):
        print(line, file=sys.stderr, flush=True)


def _of_host(played: Played, host: str) -> dict[str, Any]:
    said = played.failed.get(host)
    return {
        "changes": played.changed.get(host, []),
        "failed": f"{said['what']}: {said['why']}" if said else None,
    }


def check_lines(found: dict[str, Any]) -> Iterator[str]:
    by_host = {
        host: [
            line
            for phase, one in phases.items()
            for line in (
                *(f"{phase}: {change}" for change in one["changes"]),
                *([f"{phase}: CHECK MODE FAILED: {one['failed']}"] if one["failed"] else []),
            )
        ]
        for host, phases in found.items()
    }
    for hosts, said in foresee.alike(by_host):
        yield f"playbooks, in check mode, on {plan_report.host_ranges(hosts)}:"
        yield from (f"    {line}" for line in said or ["would change nothing"])


def any_failed(found: dict[str, Any]) -> bool:
    return any(one["failed"] for phases in found.values() for one in phases.values())
