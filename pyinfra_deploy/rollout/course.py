"""Running a rollout to its end: the policy decides, hosts are switched, everything is told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from pyinfra_deploy.rollout.policy import Course, Kind, Step, next_step, went

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.rollout.outcome import Outcome
    from pyinfra_deploy.rollout.serving import Serving


class Hosts(Protocol):
    """What is done to hosts; tests have others than real ones."""

    def look(self, before: Serving, waiting: tuple[str, ...]) -> Serving:
        """Who serves clients by now, of the models of those that wait for their turn."""

    def switch(self, hosts: tuple[str, ...]) -> Mapping[str, Outcome]:
        """Build beside what runs, drain, switch, gates, and back where they fail: all of a group at
        once. One outcome a host, whatever happens to it."""


class Teller(Protocol):
    """Where what happens is said and kept, as it happens."""

    def group(self, hosts: tuple[str, ...], course: Course) -> None:
        """A group's turn begins."""

    def outcomes(self, found: Mapping[str, Outcome], course: Course) -> None:
        """A group's turn is over."""

    def may_go_on(self, course: Course) -> bool:
        """Asked before the next group; False: not now."""


def run(course: Course, hosts: Hosts, teller: Teller) -> tuple[Course, Step]:
    """The course at its end, and with what it ended: `done`, `stop`, or `ask` when paused."""
    while True:
        step = next_step(course)
        if step.what == "go":
            # Hours may have passed, and hosts beside this rollout may have gone meanwhile.
            course = replace(course, serving=hosts.look(course.serving, course.waiting))
            step = next_step(course)
        if step.what == "go":
            teller.group(step.hosts, course)
            found = hosts.switch(step.hosts)
            course = after(course, found, step.hosts)
            teller.outcomes(found, course)
        elif step.what == "ask" and teller.may_go_on(course):
            course = replace(course, agreed=len(course.outcomes))
        else:
            return course, step


def after(course: Course, found: Mapping[str, Outcome], asked: tuple[str, ...]) -> Course:
    """With what became of a group; a host of it of which nothing is known is lost."""
    kinds = {host: found[host].kind if host in found else Kind.LOST for host in asked}
    return went(course, kinds)
