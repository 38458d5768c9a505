"""A rollout from its lock to its end, however it ends: no host is left drained by it, and the lock
is given back, or it is said how."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.rollout import course as courses
from pyinfra_deploy.rollout.others import INTERRUPTED, PAUSED
from pyinfra_deploy.rollout.policy import Code, exit_code
from pyinfra_deploy.rollout.pyinfra_hosts import HELD

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from pyinfra_deploy.rollout.asking import Answers
    from pyinfra_deploy.rollout.console import Console
    from pyinfra_deploy.rollout.pyinfra_hosts import PyinfraHosts


def drive(
    hosts: PyinfraHosts,
    console: Console,
    document: Mapping[str, Any],
    generations: Mapping[str, int | None],
) -> Code:
    """document: what is kept on each host, to go on from. generations: of each host's plan."""
    with _signals_interrupt():
        try:
            refused = _taken(hosts, console, document, generations)
            if refused is not None:
                return refused
            early = hosts.build_early()
            if early:
                course = courses.after(console.course, early, tuple(early))
                console.outcomes(early, course)
            course, step = courses.run(console.course, hosts, console)
        except KeyboardInterrupt:
            return _interrupted(hosts, console)
        except Exception:
            # A defect of this program must not keep the hosts locked.
            with contextlib.suppress(Exception, KeyboardInterrupt):
                kept = hosts.give_back(_results_so_far(console), INTERRUPTED)
                _say_what_is_kept(hosts, console, kept)
            raise
        console.course = course
        code = exit_code(course, step)
        what = {"ask": "paused", "stop": "stopped", "done": "complete"}[step.what]
        return _end(hosts, console, code, what, step.why)


def _taken(
    hosts: PyinfraHosts,
    console: Console,
    document: Mapping[str, Any],
    generations: Mapping[str, int | None],
) -> Code | None:
    """None when all hosts are taken; else the exit code, with nothing changed on any of them."""
    answers = hosts.take(document, generations)
    if not answers.missing:
        console.record.event("hosts taken", hosts=list(answers))
        return None
    for host in answers.missing:
        console.say(f"{host}: {answers.problem(host)}")
    locked = any(said.get("what") == HELD for said in answers.refused.values())
    why = f"{', '.join(answers.missing)} could not be taken; nothing was changed"
    console.say(f"not begun: {why}")
    if hosts.taken:
        names = ",".join(hosts.taken)
        console.say(
            f"{names} did not answer, and may be locked by this run: fleet lock status "
            f"{hosts.fleet.name} --limit {names}. The next run from this machine takes it over"
        )
    if locked:
        console.say(f"who holds which host: fleet lock status {hosts.fleet.name}")
    code = Code.LOCKED if locked else Code.REFUSED
    console.record.end("not begun", why, code)
    return code


def _end(hosts: PyinfraHosts, console: Console, code: Code, what: str, why: str) -> Code:
    course = console.course
    results = {host: kind.value for host, kind in course.outcomes.items()}
    causes = {host: one.reason for host, one in console.found.items() if one.reason}
    state = PAUSED if code is Code.PAUSED else ""
    with contextlib.suppress(KeyboardInterrupt):
        _say_what_is_kept(hosts, console, hosts.give_back(results, state, causes))
    if course.waiting:
        console.say(f"not touched: {', '.join(course.waiting)}")
    console.say(f"{what}{f': {why}' if why else ''} (exit code {code.value})")
    if code is Code.PAUSED:
        console.say(f"go on with: fleet rollout {hosts.fleet.name} --resume")
    console.record.end(what, why, code)
    console.say(f"report: {console.record.page_path}")
    return code


def _interrupted(hosts: PyinfraHosts, console: Console) -> Code:
    """A second Ctrl-C leaves at once; what is not given back then ends by itself, as it says."""
    console.say("interrupted: giving the hosts back; press Ctrl-C again to leave at once")
    kept, turn = list(hosts.taken), console.turn
    try:
        if turn:
            _say_of_turn(console, turn, hosts.status(turn))
        kept = hosts.give_back(_results_so_far(console), INTERRUPTED)
    except KeyboardInterrupt:
        console.say("left at once")
    _say_what_is_kept(hosts, console, kept)
    console.say(f"go on with: fleet rollout {hosts.fleet.name} --resume")
    console.record.end(INTERRUPTED, "by the operator", Code.INTERRUPTED)
    console.say(f"report: {console.record.page_path}")
    return Code.INTERRUPTED


def _results_so_far(console: Console) -> dict[str, str]:
    results = {host: kind.value for host, kind in console.course.outcomes.items()}
    return results | dict.fromkeys(console.turn, INTERRUPTED)


def _say_of_turn(console: Console, turn: tuple[str, ...], seen: Answers) -> None:
    for host in turn:
        if host not in seen:
            console.say(f"{host}: not reached; what has begun there ends by itself")
            continue
        engine = seen[host].get("engine") or {}
        if engine.get("golive_active") in ("active", "activating"):
            phase = (engine.get("golive") or {}).get("phase")
            console.say(
                f"{host}: its go-live ({phase}) goes on by itself, to its end or back to the "
                "release before; it serves again then"
            )
        else:
            console.say(f"{host}: serves {engine.get('started') or 'nothing'}")


def _say_what_is_kept(hosts: PyinfraHosts, console: Console, kept: list[str]) -> None:
    if kept:
        console.say(
            f"the lock of {', '.join(kept)} was not given back. The next run from this machine "
            "takes it over; from another one, after: "
            f"fleet lock release {hosts.fleet.name} --limit {','.join(kept)}"
        )


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """A closed terminal and `kill` end a rollout as Ctrl-C does; and Ctrl-C does also where a shell
    has begun this in the background, with SIGINT ignored."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            # A terminal that is closed says so twice, through the shell and at the shell's end:
            # the second one is nobody's wish to leave without giving the hosts back.
            signal.signal(number, lambda *_: None)
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
