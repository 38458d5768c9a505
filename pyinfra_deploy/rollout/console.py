"""A rollout at the operator's terminal, and in its record."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyinfra_deploy.rollout.masking import Lines
from pyinfra_deploy.rollout.policy import FAILURES, Course, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyinfra_deploy.rollout.outcome import Outcome
    from pyinfra_deploy.rollout.record import Record

SHOWN_LINES = 30


@dataclass
class Console:
    """A course's Teller. course: as it is now; turn: the hosts that are being switched."""

    record: Record
    course: Course
    turn: tuple[str, ...] = ()
    found: dict[str, Outcome] = field(default_factory=dict)
    _lines: Lines = field(default_factory=Lines)

    def say(self, text: str) -> None:
        self.record.log(text)
        _show(self._lines.mask(text))

    def line(self, text: str) -> None:
        """One of pyinfra's."""
        self.record.log(text)
        _show(f"    {self._lines.mask(text)}" if text else "")

    def note(self, text: str, hosts: Sequence[str]) -> None:
        """Of something beside pyinfra, into the timeline too."""
        self.say(f"    {text}")
        self.record.event(text, hosts=list(hosts))

    def group(self, hosts: tuple[str, ...], course: Course) -> None:
        self.course, self.turn = course, hosts
        done = len(course.outcomes)
        self.say(f"==> {', '.join(hosts)} ({done} of {len(course.hosts)} done)")
        self.record.event("switching", hosts=list(hosts))

    def outcomes(self, found: Mapping[str, Outcome], course: Course) -> None:
        self.course, self.turn = course, ()
        self.found |= found
        self.record.outcomes(found.values())
        for one in found.values():
            self.say(one.in_words)
            for note in one.notes:
                self.say(f"    {note}")
            if one.kind in FAILURES:
                self._explain(one)
            self.record.event(one.in_words, hosts=[one.host])

    def _explain(self, one: Outcome) -> None:
        for line in one.lines[-SHOWN_LINES:]:
            self.say(f"    | {line}")
        if one.serves and one.kind is Kind.BACK:
            self.say(f"    {one.host} serves {one.serves}")
        if one.fix:
            self.say(f"    next: {one.fix}")

    def may_go_on(self, course: Course) -> bool:
        self.course = course
        if not sys.stdin.isatty():
            return False
        return confirmed(f"{len(course.waiting)} to go: {', '.join(course.waiting)}. Go on?")


def _show(text: str) -> None:
    """Where nobody can see it any more (a closed terminal answers EIO, a closed pipe EPIPE), the
    run goes on to give its hosts back: what is said is in its record, too."""
    try:
        print(text, flush=True)
    except OSError:
        _show_no_more()


def _show_no_more() -> None:
    # What is left in the buffer would fail once more at the exit, whose code would then be 120.
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def confirmed(question: str) -> bool:
    """Whether somebody at the terminal says yes."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, OSError):
        return False
