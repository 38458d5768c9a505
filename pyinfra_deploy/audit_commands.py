"""`fleet audit`: what was done to hosts, by whom, and whether their logs of it are whole.

Each host's log is a chain of hashes (files/fleet_host/events.py). That alone does not show lines
that are missing at its end, so the inventory keeps the last head that was seen of each host:
  inventories/NAME/audit.json: {schema, hosts: {HOST: {events, head, when}}}
It belongs into the repository, like the keys: whoever changes a host's log cannot change it.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.facts_commands import chosen
from pyinfra_deploy.keys.audit_heads import HEADS, read_heads, write_heads
from pyinfra_deploy.model.asking import INCOMPLETE, add_hosts, ask
from pyinfra_deploy.settings.fleet import load_fleet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

BROKEN = 1
# Of an event, what is said first; the rest follows as KEY=VALUE.
FIRST_KEYS = ("when", "who", "what", "previous")
_BROKEN_WORDS = ("the event log",)


def register(commands: Any) -> None:
    """Add `audit`; `commands` is argparse's object for subcommands, which has no public type."""
    group = commands.add_parser("audit", help="what was done to hosts, by whom, from which lock")
    actions = group.add_subparsers(required=True, metavar="ACTION")
    verify = actions.add_parser(
        "verify",
        help="prove that each host's log is whole",
        description="Proves on each host that no line of its log was changed, removed or put in, "
        "and by what the last `fleet audit verify` saw (inventories/NAME/audit.json) that nothing "
        "is missing at its end.",
        epilog="exit code: 0 all are whole, 1 one is not, 2 some hosts could not be asked",
    )
    add_hosts(verify)
    verify.set_defaults(run=_verify)
    show = actions.add_parser("show", help="the last events of each host, oldest first")
    add_hosts(show)
    show.add_argument("--lines", type=int, default=20, help="of each host (20)")
    show.add_argument("--containing", default="", metavar="TEXT", help="only lines with TEXT")
    show.add_argument("--json", action="store_true", help="print one JSON document")
    show.set_defaults(run=_show)


def _verify(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    hosts = chosen(fleet, arguments.limit)
    path = fleet.directory / HEADS
    heads = read_heads(path)
    answers, printed = ask(fleet, hosts, "read_events.py", {"events": "verify"})
    broken = missed = False
    for host in hosts:
        answer = answers.get(host, {"refused": ["not reached"]})
        if "head" in answer:
            print(f"{host}: {said_of(answer, heads.get(host))}")
            heads[host] = {
                "events": answer["events"],
                "head": answer["head"],
                "when": (answer["last"] or {}).get("when"),
            }
            continue
        lines = answer["refused"] or ["no answer"]
        is_broken = lines[0].startswith(_BROKEN_WORDS)
        broken, missed = broken or is_broken, missed or not is_broken
        print(f"{host}: {'BROKEN' if is_broken else 'NOT READ'}: " + "\n    ".join(lines))
    write_heads(path, heads)
    if missed and not broken:
        for line in printed.splitlines()[-20:]:
            print(f"  | {line}", file=sys.stderr)
    return BROKEN if broken else INCOMPLETE if missed else 0


def said_of(answer: Mapping[str, Any], seen: Mapping[str, Any] | None) -> str:
    """A host whose log is whole, in words."""
    if not answer["events"]:
        return "nothing was done here yet"
    new = answer["events"] - (seen or {}).get("events", 0)
    since = f"{new} since {seen['when']}" if seen else "seen for the first time"
    return f"whole, {answer['events']} events, {since}; head {answer['head'][:12]}"


def _show(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    hosts = chosen(fleet, arguments.limit)
    data = {"events": "tail", "events_lines": str(arguments.lines)}
    if arguments.containing:
        data["containing"] = arguments.containing
    answers, printed = ask(fleet, hosts, "read_events.py", data)
    if arguments.json:
        print(json.dumps(answers, indent=1))
    missed = False
    for host in hosts:
        answer = answers.get(host, {"refused": ["not reached"]})
        if "events" not in answer:
            missed = True
            print(f"{host}: NOT READ: " + "\n    ".join(answer["refused"]), file=sys.stderr)
        elif not arguments.json:
            for event in answer["events"]:
                print(f"{host}  {in_words(event)}")
    if missed:
        for line in printed.splitlines()[-20:]:
            print(f"  | {line}", file=sys.stderr)
    return INCOMPLETE if missed else 0


def in_words(event: Mapping[str, Any]) -> str:
    """One line: when, who, what, then everything else."""
    rest = [f"{key}={_value(value)}" for key, value in event.items() if key not in FIRST_KEYS]
    first = f"{event.get('when')}  {event.get('who')}  {event.get('what')}"
    return f"{first}: {', '.join(rest)}" if rest else first


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
