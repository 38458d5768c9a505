"""Commands of the settings on the operator's machine, around a run: chat, tickets, calendars.

Each gets one JSON document on stdin, masked; docs/hooks.md has its keys.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyinfra_deploy.rollout.masking import mask, masked
from pyinfra_deploy.rollout.record import now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyinfra_deploy.rollout.console import Console
    from pyinfra_deploy.settings.ansible_section import Hooks
    from pyinfra_deploy.settings.fleet import Fleet

Phase = Literal["before", "after", "on_failure"]
SCHEMA = 1
NOT_BEGUN, INTERRUPTED = 1, 130
SHOWN_LINES = 10
# Set for the commands that a runbook runs: its own hooks are the ones that count.
WITHIN = "FLEET_WITHIN_RUNBOOK"


@dataclass(frozen=True)
class Failed:
    """A hook that did not end with 0: its command's first word, why, and what it said."""

    program: str
    why: str
    lines: tuple[str, ...]


def around(
    fleet: Fleet,
    facts: Mapping[str, Any],
    run: Callable[[], int],
    outcome: Callable[[], Mapping[str, Any]] = dict,
    say: Callable[[str], None] = print,
    not_begun: Callable[[str], None] = lambda _why: None,
) -> int:
    """`run`, with the hooks of the fleet before and after it: its exit code, or NOT_BEGUN.

    facts: what is known before. outcome: more facts, after. not_begun: told why, where a hook's
    failure keeps it from beginning.
    """
    if os.environ.get(WITHIN):
        return run()
    sections = hooks_of(fleet)
    document = {"schema": SCHEMA, "inventory": fleet.name, "began": now(), **facts}
    try:
        if not _before(fleet, sections, document, say, not_begun):
            return NOT_BEGUN
    except KeyboardInterrupt:
        say("interrupted in a hook; nothing was changed")
        not_begun("interrupted in a hook")
        return INTERRUPTED
    code = run()
    document |= {**outcome(), "code": int(code), "ended": now()}
    phases: tuple[Phase, ...] = ("on_failure", "after") if code else ("after",)
    try:
        for phase in phases:
            for failed in call(fleet, sections, phase, document):
                _say(failed, phase, say)
    except KeyboardInterrupt:
        say("interrupted in a hook; the run itself was over")
    return code


def around_rollout(fleet: Fleet, console: Console, run: Callable[[], int]) -> int:
    """`run`, which drives a rollout or rollback whose record is the console's."""
    record = console.record
    told = ("id", "kind", "owner", "options", "groups", "hosts")

    def outcome() -> Mapping[str, Any]:
        found = {key: record.document[key] for key in (*told, "end")}
        return found | {"report": str(record.page_path)}

    def not_begun(why: str) -> None:
        record.end("not begun", why, NOT_BEGUN)

    return around(
        fleet, {key: record.document[key] for key in told}, run, outcome, console.say, not_begun
    )


def hooks_of(fleet: Fleet) -> list[Hooks]:
    """The different sections of its hosts, in their order: mostly one."""
    return list(dict.fromkeys(host.settings.hooks for host in fleet.hosts.values()))


def _before(
    fleet: Fleet,
    sections: list[Hooks],
    document: Mapping[str, Any],
    say: Callable[[str], None],
    not_begun: Callable[[str], None],
) -> bool:
    for failed in call(fleet, sections, "before", document):
        _say(failed, "before", say)
        if any(section.when_failing == "stop" for section in sections):
            why = f"the hook {failed.program} failed: {failed.why}"
            say(f"not begun: {why} (hooks.when_failing: stop)")
            not_begun(why)
            return False
    return True


def call(
    fleet: Fleet, sections: list[Hooks], phase: Phase, document: Mapping[str, Any]
) -> list[Failed]:
    """Every command of the phase, once each; those that failed."""
    text = json.dumps(masked({"phase": phase, **document}), indent=1) + "\n"
    commands = {
        command: section.timeout_seconds
        for section in sections
        for command in getattr(section, phase)
    }
    found = (_call(fleet, command, seconds, text) for command, seconds in commands.items())
    return [failed for failed in found if failed is not None]


def _call(fleet: Fleet, command: tuple[str, ...], seconds: int, text: str) -> Failed | None:
    own = fleet.root / command[0]
    program = str(own) if "/" in command[0] and own.is_file() else command[0]
    try:
        done = subprocess.run(
            [program, *command[1:]], cwd=fleet.root, input=text, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Failed(command[0], f"it had not ended after {seconds} s", ())
    except OSError as error:
        return Failed(command[0], f"it could not be run: {error.strerror}", ())
    if done.returncode == 0:
        return None
    lines = tuple(mask(line) for line in done.stdout.splitlines()[-SHOWN_LINES:])
    return Failed(command[0], f"it ended with {done.returncode}", lines)


def _say(failed: Failed, phase: Phase, say: Callable[[str], None]) -> None:
    say(f"hooks.{phase}: {failed.program}: {failed.why}")
    for line in failed.lines:
        say(f"  | {line}")
