"""The policy of a rollout, all of it on this page: pure, no host and no clock.

    canary    of each model, hosts go in groups of `canary` until one of them serves the new release
    batches   then in groups of `batch`; a share is one of all hosts, rounded down, at least one
    models    no group has all hosts that serve a model to clients, where there is more than one
    pause     before each group but the first, somebody is asked
    stop      a canary that went back, a host that serves nothing, more failures than are allowed,
              or a model's last host, where there were others when somebody agreed to it

A host that fails its gates goes back to its previous release by itself (files/fleet_host/golive.py)
and serves it; nothing here has to be done for that. What comes next follows from the outcomes so
far and from nothing else, so a rollout that was interrupted goes on by asking the same question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Literal

from pyinfra_deploy.rollout.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Kind(Enum):
    """What became of a host in its turn."""

    LIVE = "live"  # it serves the release, which has passed its gates
    SAME = "same"  # it served it already
    BACK = "back"  # its gates failed; it serves its previous release again
    FAILED = "failed"  # something before the switch failed; it serves what it did, or nothing yet
    DOWN = "down"  # it serves nothing, and did before, or was to
    AFTER = "after"  # it serves the release, and a playbook after that failed
    LOST = "lost"  # it was not reached, or did not answer to its end


FAILURES = (Kind.BACK, Kind.FAILED, Kind.AFTER, Kind.DOWN, Kind.LOST)


class Code(IntEnum):
    """Exit codes; docs/rollout.md has the same table."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    STOPPED = 3
    WITH_FAILURES = 4
    DOWN = 5
    LOST = 6
    PAUSED = 7
    LOCKED = 8
    INTERRUPTED = 130


@dataclass(frozen=True)
class Batch:
    """How many hosts go at once: `size` hosts, or `percent` of all."""

    size: int = 0
    percent: int = 0

    def of(self, hosts: int) -> int:
        """At least one, at most all."""
        return max(1, min(hosts, self.size or hosts * self.percent // 100))

    def __str__(self) -> str:
        return f"{self.percent}%" if self.percent else str(self.size)


def read_batch(text: str) -> Batch:
    """`25%` or `3`. Raises ValueError with what it may be."""
    match = re.fullmatch(r"([1-9][0-9]{0,3})(%?)", text.strip())
    if not match or (match[2] and int(match[1]) > 100):
        raise ValueError(f"{text!r} is neither a number of hosts (3) nor a share of them (25%)")
    number = int(match[1])
    return Batch(percent=number) if match[2] else Batch(size=number)


@dataclass(frozen=True)
class Options:
    """canary 0: no canary, batches from the first host on."""

    canary: int = 1
    batch: Batch = field(default_factory=lambda: Batch(percent=25))
    pause: bool = False
    max_failures: int = 0


@dataclass(frozen=True)
class Course:
    """hosts: in their order. outcomes: of those that had their turn. agreed: how many outcomes
    somebody has seen and agreed to go on after. serving: who serves clients as it is now."""

    hosts: tuple[str, ...]
    options: Options
    outcomes: Mapping[str, Kind] = field(default_factory=dict)
    agreed: int = 0
    serving: Serving = field(default_factory=Serving)

    @property
    def waiting(self) -> tuple[str, ...]:
        return tuple(host for host in self.hosts if host not in self.outcomes)

    def had(self, *kinds: Kind) -> tuple[str, ...]:
        return tuple(host for host in self.hosts if self.outcomes.get(host) in kinds)

    def model(self, host: str) -> str | None:
        """Which its turn brings; None where its engine is not switched."""
        return self.serving.coming.get(host)

    def proven(self, host: str, *kinds: Kind) -> bool:
        """Whether one has come to `kinds` with this host's model; without a model, any has."""
        model = self.model(host)
        return any(model is None or self.model(one) == model for one in self.had(*kinds))


@dataclass(frozen=True)
class Step:
    """hosts: those to switch now, for `go`. why: in words, for `stop`."""

    what: Literal["go", "ask", "stop", "done"]
    hosts: tuple[str, ...] = ()
    why: str = ""


def next_step(course: Course) -> Step:
    """What a rollout does after what has happened so far."""
    why = _reason_to_stop(course)
    if why:
        return Step("stop", why=why)
    if not course.waiting:
        return Step("done")
    if course.options.pause and len(course.outcomes) > course.agreed:
        return Step("ask")
    group = _group(course)
    for model, host in course.serving.taken_away(group).items():
        if model not in course.serving.agreed:
            return Step("stop", why=f"{host} is by now the only host that serves {model}")
    return Step("go", group)


def _reason_to_stop(course: Course) -> str:
    failed, down = course.had(*FAILURES), course.had(Kind.DOWN)
    if down:
        return f"{', '.join(down)} serves nothing"
    back = [host for host in course.had(Kind.BACK) if not course.proven(host, Kind.LIVE)]
    if course.options.canary and back:
        return f"the canary {', '.join(back)} went back to its previous release"
    if len(failed) > course.options.max_failures:
        allowed = course.options.max_failures
        return f"{', '.join(failed)} failed" + (f", and {allowed} may fail" if allowed else "")
    return ""


def _group(course: Course) -> tuple[str, ...]:
    size, candidates = course.options.batch.of(len(course.hosts)), course.waiting
    untried = [host for host in candidates if not course.proven(host, Kind.LIVE, Kind.SAME)]
    if course.options.canary and untried:
        size, model = course.options.canary, course.model(untried[0])
        candidates = tuple(host for host in candidates if course.model(host) == model)
    group: list[str] = []
    for host in candidates:
        if len(group) < size and course.serving.may_join(host, group):
            group.append(host)
    return tuple(group)


def went(course: Course, kinds: Mapping[str, Kind]) -> Course:
    """With what became of hosts, and who serves clients after that."""
    serving = course.serving
    for host, kind in kinds.items():
        if kind in (Kind.LIVE, Kind.SAME, Kind.AFTER):
            serving = serving.switched([host])
        elif kind in (Kind.DOWN, Kind.LOST):
            serving = serving.gone([host])
        elif kind is Kind.BACK:
            serving = serving.back([host])
    return replace(course, outcomes={**course.outcomes, **kinds}, serving=serving)


def groups_foreseen(
    hosts: Sequence[str], options: Options, serving: Serving | None = None
) -> tuple[tuple[str, ...], ...]:
    """The groups in which the hosts go while nothing fails: for the plan, which tells what each
    takes from clients."""
    found = serving or Serving()
    found = replace(found, agreed=frozenset(found.now.values()))
    course, groups = Course(tuple(hosts), options, serving=found), []
    while (step := next_step(course)).what in ("go", "ask"):
        if step.what == "go":
            groups.append(step.hosts)
        course = went(
            replace(course, agreed=len(course.outcomes)), dict.fromkeys(step.hosts, Kind.LIVE)
        )
    return tuple(groups)


def exit_code(course: Course, step: Step) -> Code:
    """Of a rollout that has ended with `step`: the worst of what became of its hosts."""
    if step.what == "ask":
        return Code.PAUSED
    if course.had(Kind.DOWN):
        return Code.DOWN
    if course.had(Kind.LOST):
        return Code.LOST
    if step.what == "stop":
        return Code.STOPPED
    return Code.WITH_FAILURES if course.had(*FAILURES) else Code.DONE
