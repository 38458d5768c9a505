"""What a runbook is, and running one: checks, steps, checks, each told as it is done."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pyinfra_deploy.operations.run import stealing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyinfra_deploy.settings.fleet import Fleet

POLL_SECONDS = 2.0
# As a deploy's: longer than anything here; a killed run's is taken over by the next.
LEASE_SECONDS = 24 * 3600
DONE, REFUSED, FAILED = 0, 1, 3


class StopError(Exception):
    """A check that does not hold, or a step that did not come to its end."""

    def __init__(self, what: str, fix: str = "", lines: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.what, self.fix, self.lines = what, fix, tuple(lines)


class Answers(Protocol):
    """Of hosts: {host: answer}, and those that gave none."""

    @property
    def missing(self) -> list[str]: ...

    def problem(self, host: str) -> str: ...

    def __getitem__(self, host: str) -> dict[str, Any]: ...


class Doors(Protocol):
    """How a runbook reaches hosts and the other commands; tests have others than real ones."""

    def ask(
        self, command: str, requests: Mapping[str, Mapping[str, Any]], timeout_seconds: int
    ) -> Answers: ...

    def fleet(self, words: Sequence[str]) -> tuple[int, str]:
        """`fleet WORDS`, shown as it runs: (exit code, what it printed on stdout)."""

    def deploy(self, hosts: Sequence[str], deploy: str) -> tuple[int, list[str]]:
        """A file of pyinfra_deploy/deploys: (exit code, what was said)."""

    def facts(self, hosts: Sequence[str], directory: Path) -> list[str]:
        """`fleet facts collect`: the hosts that could not be read."""

    def confirmed(self, question: str) -> bool: ...

    def say(self, text: str) -> None: ...

    def mask(self, text: str) -> str: ...


@dataclass
class Scene:
    """One run: hosts in their order; options as they were given; seen: what steps leave to those
    after them; yes: nobody is asked. lease: who is running (operations/run.py), for the lock."""

    fleet: Fleet
    hosts: list[str]
    options: Mapping[str, str]
    who: str
    doors: Doors
    lease: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    yes: bool = False
    seen: dict[str, Any] = field(default_factory=dict)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    @property
    def host(self) -> str:
        """The only one, of a runbook that takes one."""
        return self.hosts[0]

    def say(self, text: str) -> None:
        self.doors.say(text)

    def engine(self, host: str) -> str:
        return self.fleet.hosts[host].settings.engine.name

    def ask(
        self,
        command: str,
        hosts: Sequence[str] | None = None,
        timeout_seconds: int = 120,
        **request: Any,
    ) -> Answers:
        """Of all hosts of the run, each with its engine's name. StopError where one says no."""
        asked = self.hosts if hosts is None else hosts
        requests = {host: {"engine": self.engine(host), **request} for host in asked}
        return self._ask(command, requests, timeout_seconds)

    def _ask(
        self, command: str, requests: Mapping[str, Mapping[str, Any]], timeout_seconds: int = 120
    ) -> Answers:
        answers = self.doors.ask(command, requests, timeout_seconds)
        if answers.missing:
            first = answers.missing[0]
            raise StopError(
                "; ".join(f"{host}: {answers.problem(host).splitlines()[0]}"
                          for host in answers.missing),
                lines=answers.problem(first).splitlines()[1:],
            )  # fmt: skip
        return answers

    def run_fleet(self, *words: str, good: Sequence[int] = (0,)) -> str:
        """What `fleet WORDS` printed. StopError for another exit code than those."""
        self.say(f"  $ fleet {' '.join(words)}")
        code, printed = self.doors.fleet(words)
        if code not in good:
            raise StopError(f"fleet {words[0]} ended with {code}", "mend what it says above")
        return printed

    def take(self) -> None:
        """The lock of all hosts; of a run of this machine that was killed it is taken over.
        StopError where another run has one by now."""
        there = self.ask("rollout status")
        spec = {**self.lease, "ttl_seconds": LEASE_SECONDS, "generation_seen": None}
        self.seen["leased"] = list(self.hosts)
        self._ask(
            "lease acquire", {host: spec | stealing(there[host]["lease"]) for host in self.hosts}
        )

    def give_back(self) -> None:
        """What `take` has taken; of a host that another run has, nothing."""
        hosts = self.seen.pop("leased", [])
        requests = {host: {"run": self.lease["run"]} for host in hosts}
        kept = self.doors.ask("lease release", requests, 30).missing if hosts else []
        if kept:
            self.say(f"the lock of {', '.join(kept)} was not given back: fleet lock release")

    def wait(self, what: Callable[[], str], seconds: float) -> None:
        """Until `what` gives no reason any more. StopError with its last one."""
        deadline = self.clock() + seconds
        while why := what():
            if self.clock() >= deadline:
                raise StopError(f"{why}, after {seconds:.0f} s")
            self.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class Step:
    """when: `before` checks, which also a dry run makes; `do`; `after` checks."""

    when: Literal["before", "do", "after"]
    text: str
    act: Callable[[Scene], None]


@dataclass(frozen=True)
class Runbook:
    """does: for who reads it first. group: hosts of which it is for, "" any. one: it takes exactly
    one host. options: {name: what it is}. after_failure: what a host may be left as.
    locks: it changes hosts itself, and no other run may meanwhile; the others leave that to the
    commands that they run."""

    name: str
    summary: str
    does: str
    steps: tuple[Step, ...]
    group: Literal["gpu", "gateway", ""] = "gpu"
    one: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    after_failure: str = ""
    locks: bool = False

    @property
    def described(self) -> str:
        heads = {"before": "checks first", "do": "does", "after": "checks afterwards"}
        lines = [f"{self.name}: {self.summary}", "", self.does]
        for when, head in heads.items():
            found = [step.text for step in self.steps if step.when == when]
            lines += ["", f"{head}:", *(f"  - {text}" for text in found)] if found else []
        if self.options:
            lines += ["", "options (--set NAME=VALUE):"]
            lines += [f"  {name}: {what}" for name, what in self.options.items()]
        if self.after_failure:
            lines += ["", f"after a failure: {self.after_failure}"]
        return "\n".join(lines)


def run(book: Runbook, scene: Scene, *, dry: bool) -> int:
    """0 done, 1 refused with nothing changed, 3 failed on the way."""
    try:
        return _run(book, scene, dry=dry)
    finally:
        scene.give_back()


def _run(book: Runbook, scene: Scene, *, dry: bool) -> int:
    began = False
    for step in book.steps:
        if dry and step.when != "before":
            scene.say(f"would {'check' if step.when == 'after' else 'do'}: {step.text}")
            continue
        if step.when == "do" and not began and not scene.yes:
            names = ", ".join(scene.hosts)
            if not scene.doors.confirmed(f"{book.summary}, on {names}?"):
                scene.say("nothing was changed")
                return REFUSED
        scene.say(f"{'check' if step.when != 'do' else '==>'} {step.text}")
        try:
            if step.when == "do" and not began and book.locks:
                scene.take()
            began = began or step.when == "do"
            step.act(scene)
        except StopError as stop:
            scene.say(f"{'FAILED' if began else 'refused'}: {stop.what}")
            for line in stop.lines:
                scene.say(f"  | {line}")
            if stop.fix:
                scene.say(f"  next: {stop.fix}")
            if began and book.after_failure:
                scene.say(f"  {book.after_failure}")
            return FAILED if began else REFUSED
    if not dry:
        scene.say(f"{book.name}: done")
    return DONE
