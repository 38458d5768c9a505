"""The hosts of a rollout, for real: pyinfra as a child, once a group; leases are the lock."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.operations.rollout_run import TTL_SECONDS, VARIABLE, RolloutRun
from pyinfra_deploy.operations.run import is_dead_run_of_this_machine
from pyinfra_deploy.rollout import asking, child, others, outcome, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyinfra_deploy.operations.run import Run
    from pyinfra_deploy.rollout.outcome import Outcome
    from pyinfra_deploy.rollout.serving import Serving
    from pyinfra_deploy.settings.fleet import Fleet

# Long before the leases end, and rarely: hosts in their turn renew theirs by themselves.
RENEW_AFTER_SECONDS = 6 * 3600
BUILD_EARLY = Path(__file__).resolve().parents[1] / "deploys" / "build_early.py"
# files/fleet_host/lease.py
HELD = "another run is at work on this host"
NOT_BEGUN, GIVEN_UP = "not begun", "given up"


@dataclass
class PyinfraHosts:
    """A course's Hosts, and the lock that goes with them.

    wanted: the release that is to come on each host, None where it has no engine or its model's
    digest is not known yet. deploy, data: what is run on a group, and pyinfra's --data for it.
    early: hosts that can be built on before the first group.
    """

    fleet: Fleet
    rollout: str
    run: Run
    wanted: Mapping[str, str | None]
    deploy: Path
    data: Mapping[str, str]
    on_line: Callable[[str], None]
    early: tuple[str, ...] = ()
    clock: Callable[[], float] = time.monotonic
    taken: list[str] = field(default_factory=list)
    _document: Mapping[str, Any] = field(default_factory=dict)
    _renewed: float = 0.0

    # --- the lock

    def take(
        self, document: Mapping[str, Any], generations: Mapping[str, int | None]
    ) -> asking.Answers:
        """Take all hosts, or none: what stood in the way is in the answers. The first host is taken
        alone, so that of two that begin at once one gets it and the other learns of it there. All
        others of the inventory that answer are asked then: of two rollouts that have no host in
        common each has taken its own before, so one at least sees the other, whoever is down."""
        self._document = document
        hosts = sorted(self.wanted)
        # From here on: who is interrupted in the middle does not know which of them are.
        self.taken = list(hosts)
        answers = asking.Answers()
        for some in (hosts[:1], hosts[1:]):
            found = self._take(some, generations)
            answers.update(found)
            answers.refused |= found.refused
            answers.lost |= found.lost
            if found.missing:
                break
        else:
            self._meet_others(answers)
        if answers.missing:
            # One whose answer was lost may have been taken all the same.
            self.taken = [host for host in hosts if host in answers or host in answers.lost]
            self.give_back(dict.fromkeys(self.taken, NOT_BEGUN), "")
        self._renewed = self.clock()
        return answers

    def _meet_others(self, answers: asking.Answers) -> None:
        """Hosts that another rollout has are told as refused. What was begun before and has been
        left is over with this one: nobody is to go on with it later."""
        rest = [host for host in self.fleet.hosts if host not in self.wanted]
        seen = asking.ask(self.fleet, "rollout status", {host: {"engine": None} for host in rest})
        for host, one in seen.items():
            if others.at_work(one, self.fleet.name):
                why = f"{others.in_words(one)} runs: one at a time in an inventory."
                answers.refused[host] = {"what": HELD, "why": why, "fix": "Wait for it."}
        left = {host: one for host, one in seen.items() if others.is_unfinished(one)}
        if answers.missing or not left:
            return
        for said in sorted({others.in_words(one) for one in left.values()}):
            self.on_line(f"{said} has not ended, and cannot be gone on with from here on")
        give_up(self.fleet, left, f"{self.rollout} has begun")

    def _take(self, hosts: Sequence[str], generations: Mapping[str, int | None]) -> asking.Answers:
        answers = asking.ask(
            self.fleet,
            "rollout take",
            {host: self._request(host, generations.get(host)) for host in hosts},
        )
        held = [host for host, said in answers.refused.items() if said.get("what") == HELD]
        dead = {
            host: answer["lease"]
            for host, answer in (self.status(held) if held else {}).items()
            if is_dead_run_of_this_machine(answer["lease"])
        }
        # A run of this machine that was killed holds nobody up.
        again = asking.ask(
            self.fleet,
            "rollout take",
            {host: self._request(host, None, lease["run"]) for host, lease in dead.items()},
        )
        for host in dead:
            del answers.refused[host]
        answers.update(again)
        answers.refused |= again.refused
        answers.lost |= again.lost
        return answers

    def _request(
        self, host: str, generation: int | None, steal_run: str | None = None
    ) -> dict[str, Any]:
        lease = {
            **self.run.as_spec(), "ttl_seconds": TTL_SECONDS, "generation_seen": generation,
            "steal_run": steal_run,
        }  # fmt: skip
        return {"lease": lease, "rollout": self._document, "release": self.wanted[host]}

    def renew(self) -> None:
        """Where hours have passed: the leases of hosts that wait for their turn."""
        if self.clock() - self._renewed < RENEW_AFTER_SECONDS:
            return
        self._renewed = self.clock()
        spec = {"run": self.run.run, "ttl_seconds": TTL_SECONDS}
        asking.ask(self.fleet, "lease renew", dict.fromkeys(self.taken, spec))

    def give_back(
        self, results: Mapping[str, str], state: str, causes: Mapping[str, str] | None = None
    ) -> list[str]:
        """End the rollout on all taken hosts; those on which it could not be ended. state: "" for
        an end, another word where it may be gone on with."""
        requests = {
            host: {
                "run": self.run.run,
                "id": self.rollout,
                "state": state,
                "result": results.get(host, NOT_BEGUN),
                "release": self.wanted.get(host),
                "cause": (causes or {}).get(host, ""),
            }
            for host in self.taken
        }
        answers = asking.ask(self.fleet, "rollout end", requests, timeout_seconds=30)
        self.taken = [host for host in self.taken if host not in answers]
        return list(self.taken)

    def status(self, hosts: Sequence[str]) -> asking.Answers:
        requests = {
            host: {
                "engine": self._engine(host), "gateway": "gateway" in self.fleet.hosts[host].groups,
            }
            for host in hosts
        }  # fmt: skip
        return asking.ask(self.fleet, "rollout status", requests)

    def _status_and_answers(self, hosts: Sequence[str]) -> asking.Answers:
        """Of an engine whose go-live has failed also whether it answers, as `answers`."""
        seen = self.status(hosts)
        failed = [
            host
            for host, one in seen.items()
            if ((one.get("engine") or {}).get("golive") or {}).get("phase") == "failed"
        ]
        requests = {host: {"engine": self._engine(host)} for host in failed}
        for host, one in asking.ask(self.fleet, "service answers", requests).items():
            seen[host]["engine"]["answers"] = one["answers"]
        return seen

    def _engine(self, host: str) -> str | None:
        found = self.fleet.hosts[host]
        return found.settings.engine.name if "gpu" in found.groups else None

    # --- before the first group, and a group's turn

    def look(self, before: Serving, waiting: tuple[str, ...]) -> Serving:
        return serving.look_again(self.fleet, before, before.beside(waiting))

    def build_early(self) -> Mapping[str, Outcome]:
        """Runtime and model, on all hosts at once, while all of them serve. What became of those
        that failed: the others are as they were, with more on their disks."""
        if not self.early:
            return {}
        with tempfile.TemporaryDirectory(prefix="fleet-rollout-") as name:
            step = RolloutRun(self.rollout, self.run.as_spec(), Path(name))
            ran = child.run(
                child.command_line(self.fleet, self.early, BUILD_EARLY, {}),
                self.fleet.root,
                {VARIABLE: step.as_variable()},
                self.on_line,
            )
        dropped = set(ran.results.get("failed_hosts", self.early if ran.code else ()))
        bad = [host for host in self.early if asking.shown_name(self.fleet, host) in dropped]
        seen = self.status(bad) if bad else {}
        return {
            host: outcome.failed(
                host, self.rollout, self.wanted[host], None, self._said(ran, host),
                seen.get(host),
            )
            for host in bad
        }  # fmt: skip

    def switch(self, hosts: tuple[str, ...]) -> Mapping[str, Outcome]:
        self.renew()
        with tempfile.TemporaryDirectory(prefix="fleet-rollout-") as name:
            directory = Path(name)
            step = RolloutRun(self.rollout, self.run.as_spec(), directory)
            ran = child.run(
                child.command_line(self.fleet, hosts, self.deploy, self.data),
                self.fleet.root,
                {VARIABLE: step.as_variable()},
                self.on_line,
            )
            told = {host: _read(directory / f"{host}.json") for host in hosts}
        ended_well = {host for host in hosts if self._ended_well(ran, host, told[host])}
        rest = [host for host in hosts if host not in ended_well]
        seen = self._status_and_answers(rest)
        return {
            host: outcome.succeeded(host, self.wanted[host], told[host])
            if host in ended_well
            else outcome.failed(
                host, self.rollout, self.wanted[host], told[host], self._said(ran, host),
                seen.get(host),
            )
            for host in hosts
        }  # fmt: skip

    def _said(self, ran: child.Ran, host: str) -> tuple[str, ...]:
        """Of the host; where nothing is, as for settings that cannot be read, what came last."""
        return ran.about(asking.shown_name(self.fleet, host)) or ran.lines[-5:]

    def _ended_well(self, ran: child.Ran, host: str, told: Mapping[str, Any] | None) -> bool:
        name = asking.shown_name(self.fleet, host)
        # Without results every host has failed, or the run itself.
        if not ran.results or (told is not None and "error" in told):
            return False
        # A go-live may have succeeded, and a step after it failed.
        failed = name in ran.results.get("failed_hosts", ())
        return ran.finished(name) or (told is not None and "result" in told and not failed)


def give_up(fleet: Fleet, left: Mapping[str, Mapping[str, Any]], cause: str) -> asking.Answers:
    """End, on their hosts, rollouts that nobody is to go on with. left: {host: `rollout status`}.
    Their locks, where a killed run has left them, stay as they are."""
    requests = {
        host: {
            "run": "none", "id": one["rollout"]["id"], "state": "", "result": GIVEN_UP,
            "release": None, "cause": cause,
        }
        for host, one in left.items()
    }  # fmt: skip
    return asking.ask(fleet, "rollout end", requests, timeout_seconds=30)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None
