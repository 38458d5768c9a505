"""Playbooks of the settings, on some hosts: a child process, and what became of each host."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyinfra_deploy.rollout import child, outcome
from pyinfra_deploy.rollout.policy import Kind
from pyinfra_deploy.rollout.pyinfra_hosts import PyinfraHosts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyinfra_deploy.rollout.outcome import Outcome
    from pyinfra_deploy.settings.ansible_section import Ansible
    from pyinfra_deploy.settings.fleet import Fleet

Phase = Literal["before", "after"]
MODULE = "pyinfra_deploy.playbooks"


@dataclass
class Played:
    """failed: {host: {what, why, fix, detail}}, as a host's own refusal. changed: {host: lines, one
    a playbook}. told: for the record, one text a playbook."""

    failed: dict[str, dict[str, Any]] = field(default_factory=dict)
    changed: dict[str, list[str]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)


def sections(fleet: Fleet, hosts: Sequence[str]) -> list[tuple[Ansible, list[str]]]:
    """Hosts by what the settings say of playbooks, in their order."""
    found: dict[Ansible, list[str]] = {}
    for host in hosts:
        found.setdefault(fleet.hosts[host].settings.ansible, []).append(host)
    return list(found.items())


def any_of(fleet: Fleet, hosts: Sequence[str], *phases: Phase) -> bool:
    return any(
        getattr(section, phase)
        for section, _ in sections(fleet, hosts)
        for phase in phases or ("before", "after")
    )


def play(
    fleet: Fleet,
    hosts: Sequence[str],
    phase: Phase,
    on_line: Callable[[str], None],
    *,
    check: bool = False,
    syntax: bool = False,
) -> Played:
    """Run the phase's playbooks of these hosts on them and on no other."""
    played = Played()
    for section, same in sections(fleet, hosts):
        playbooks = getattr(section, phase)
        if not playbooks:
            continue
        spec = {
            "root": str(fleet.root), "inventory": str(fleet.directory / "hosts.yml"),
            "playbooks": list(playbooks), "hosts": same, "check": check, "syntax": syntax,
            "requirements": section.requirements,
            "requirements_directory": section.requirements_directory,
            "timeout_seconds": section.timeout_seconds,
        }  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="fleet-playbooks-") as name:
            path = Path(name) / "spec.json"
            path.write_text(json.dumps(spec), encoding="utf-8")
            line = [sys.executable, "-m", MODULE, str(path)]
            ran = child.run(line, fleet.root, {}, on_line)
        _take(played, ran, same, phase)
    return played


def _take(played: Played, ran: child.Ran, hosts: Sequence[str], phase: Phase) -> None:
    refused = ran.results.get("refused")
    if not ran.results:
        refused = {
            "what": f"the playbooks of ansible.{phase} did not come to their end",
            "why": f"ansible-runner ended with {ran.code}.",
            "fix": "mend what it says",
            "detail": list(ran.lines[-15:]),
        }
    if refused:
        played.failed |= dict.fromkeys(hosts, refused)
        played.told.append(f"ansible.{phase}: {refused['what']}")
        return
    for one in ran.results["playbooks"]:
        for host, failed in one["failed"].items():
            played.failed[host] = _failure(one["playbook"], failed, ran.about(host), phase)
        for host, tasks in one["changed"].items():
            said = f"{one['playbook']}: {len(tasks)} changed ({'; '.join(tasks)})"
            played.changed.setdefault(host, []).append(said)
        played.told.append(_told(one))


def _failure(
    playbook: str, failed: Mapping[str, Any], lines: Sequence[str], phase: Phase
) -> dict[str, Any]:
    what = f"playbook {playbook} {'did not reach it' if failed['unreachable'] else 'failed'}"
    task = f"task '{failed['task']}': " if failed["task"] else ""
    first, *more = failed["why"].splitlines()
    return {
        "what": what,
        "why": task + first,
        "fix": f"mend the playbook or the host, or take it out of ansible.{phase}",
        "detail": more or list(lines),
    }


def _told(one: Mapping[str, Any]) -> str:
    parts = [
        f"{len(names)} {word}" + (f" ({', '.join(names)})" if names else "")
        for word, names in (("changed", list(one["changed"])), ("failed", list(one["failed"])))
    ]
    return f"playbook {one['playbook']}: {', '.join(parts)}, {one['seconds']} s"


@dataclass
class HostsWithPlaybooks(PyinfraHosts):
    """A turn with the playbooks around it. note: for the record."""

    note: Callable[[str, Sequence[str]], None] = lambda _text, _hosts: None

    def switch(self, hosts: tuple[str, ...]) -> Mapping[str, Outcome]:
        before = self._play("before", hosts)
        found = dict(self._failed(before))
        going = tuple(host for host in hosts if host not in found)
        found |= super().switch(going) if going else {}
        served = tuple(host for host in going if found[host].kind in (Kind.LIVE, Kind.SAME))
        after = self._play("after", served)
        for host, one in self._failed(after).items():
            # It was switched before, so it is not "failed before the switch".
            kind = Kind.AFTER if one.kind is Kind.FAILED else one.kind
            found[host] = replace(one, kind=kind, gates=found[host].gates)
        for host in found:
            notes = [*before.changed.get(host, ()), *after.changed.get(host, ())]
            found[host] = replace(found[host], notes=(*found[host].notes, *notes))
        return found

    def _play(self, phase: Phase, hosts: Sequence[str]) -> Played:
        if not any_of(self.fleet, hosts, phase):
            return Played()
        self.renew()
        played = play(self.fleet, hosts, phase, self.on_line)
        for text in played.told:
            self.note(text, hosts)
        return played

    def _failed(self, played: Played) -> dict[str, Outcome]:
        seen = self.status(list(played.failed)) if played.failed else {}
        return {
            host: outcome.failed(
                host, self.rollout, self.wanted[host], {"error": error}, (), seen.get(host)
            )
            for host, error in played.failed.items()
        }
