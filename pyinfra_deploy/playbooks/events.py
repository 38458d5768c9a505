"""What ansible-runner tells while a playbook runs: each event in a line, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.rollout.masking import mask

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

MOST_CHARACTERS = 2000
MOST_LINES = 40


@dataclass
class Told:
    """One playbook on some hosts. changed: {host: its tasks}. failed: {host: {task, why,
    unreachable}}. stats: ansible's own figures by host, None before its end."""

    hosts: Sequence[str]
    changed: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)
    stats: Mapping[str, Mapping[str, int]] | None = None
    lines: list[str] = field(default_factory=list)

    def take(self, event: Mapping[str, Any]) -> list[str]:
        """The lines that it is worth; a host's begin with [HOST], as pyinfra's do."""
        kind, data = event.get("event"), event.get("event_data") or {}
        self.lines += [line for line in str(event.get("stdout") or "").splitlines() if line.strip()]
        del self.lines[:-MOST_LINES]
        host, task = str(data.get("host")), str(data.get("task") or "")
        if kind == "playbook_on_stats":
            self.stats = {
                key: dict(data.get(key) or {}) for key in ("ok", "dark", "failures", "changed")
            }
        if kind == "runner_on_ok" and (data.get("res") or {}).get("changed"):
            self.changed.setdefault(host, []).append(task)
            return [f"[{host}] changed: {mask(task)}"]
        if kind in ("runner_on_failed", "runner_on_unreachable"):
            why = mask(reason(data.get("res") or {}))
            if data.get("ignore_errors"):
                return [f"[{host}] failed, which the playbook ignores: {mask(task)}"]
            unreachable = kind == "runner_on_unreachable"
            self.failed[host] = {"task": task, "why": why, "unreachable": unreachable}
            word = "unreachable" if unreachable else "failed"
            return [f"[{host}] {word}: {mask(task)}: {line}" for line in why.splitlines()]
        return []

    def end(
        self, code: int, status: str, timeout_seconds: int, not_to_end: Collection[str]
    ) -> dict[str, Any]:
        """The result: {concerned, changed, failed}, of hosts that it was to run on.

        not_to_end: the hosts that ansible-playbook itself calls failed. With any_errors_fatal, and
        after a task with run_once, hosts are among them that have no failure in the figures.
        """
        stats = self.stats or {}
        # A task that failed and was rescued is no failure: the figures decide.
        own = {**stats.get("dark", {}), **stats.get("failures", {})}
        first = ", ".join(host for host in self.hosts if host in own)
        ended = _failed(f"it was ended for all hosts after {first}")
        failed = {
            host: self.failed.get(host) or _failed("it failed") if host in own else ended
            for host in self.hosts
            if host in own or host in not_to_end
        }
        if status == "timeout":
            why = f"it took longer than ansible.timeout_seconds = {timeout_seconds} and was ended"
            failed = self._all(why, failed)
        elif code != 0 and not failed:
            why = "\n".join(self.said()) or f"ansible-playbook ended with {code}"
            failed = self._all(why, failed)
        concerned = {host for key in stats for host in stats[key]}
        return {
            "concerned": [host for host in self.hosts if host in concerned],
            "changed": {host: tasks for host, tasks in self.changed.items() if host in self.hosts},
            "failed": failed,
        }

    def _all(self, why: str, failed: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {host: failed.get(host) or _failed(why) for host in self.hosts}

    def said(self) -> list[str]:
        """ansible-playbook's last lines, from its error on where it says one."""
        found = [number for number, line in enumerate(self.lines) if "ERROR" in line]
        return [mask(line) for line in self.lines[found[0] if found else -5 :]]


def _failed(why: str) -> dict[str, Any]:
    return {"task": "", "why": why, "unreachable": False}


def reason(res: Mapping[str, Any]) -> str:
    """Why a task failed: its message, and what a command printed last."""
    parts = [str(res.get("msg") or "").strip()]
    for key in ("module_stderr", "stderr", "stdout"):
        text = str(res.get(key) or "").strip()
        if text and text not in parts[0]:
            parts.append("\n".join(text.splitlines()[-5:]))
            break
    loop = [one for one in res.get("results") or () if isinstance(one, dict) and one.get("failed")]
    if loop:
        parts.append(reason(loop[0]))
    return "\n".join(filter(None, parts))[:MOST_CHARACTERS] or "it does not say why"
