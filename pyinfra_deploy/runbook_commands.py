"""`fleet runbook`: procedures with checks before and after, and a dry run."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy import facts_commands, hooks, recorded
from pyinfra_deploy.operations.run import own_run
from pyinfra_deploy.rollout import asking, child
from pyinfra_deploy.rollout.console import confirmed
from pyinfra_deploy.rollout.masking import mask
from pyinfra_deploy.runbooks import registry
from pyinfra_deploy.runbooks.book import Scene, run
from pyinfra_deploy.settings.fleet import load_fleet
from pyinfra_deploy.settings.problems import Problem, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyinfra_deploy.runbooks.book import Runbook
    from pyinfra_deploy.settings.fleet import Fleet

DEPLOYS = Path(__file__).resolve().parent / "deploys"
USAGE, INTERRUPTED = 2, 130
# Options that name files of the operator, from where the command was given.
FILES = ("out",)


def register(commands: Any) -> None:
    """Add `runbook`; `commands` is argparse's object for subcommands, which has no public type."""
    group = commands.add_parser("runbook", help="procedures for bad and long days")
    actions = group.add_subparsers(required=True, metavar="ACTION")
    actions.add_parser("list", help="which there are").set_defaults(run=_list)
    show = actions.add_parser("show", help="what one does, and what it checks")
    show.add_argument("name", choices=registry.NAMES, metavar="NAME")
    show.set_defaults(run=_show)
    one = actions.add_parser(
        "run",
        help="run one",
        epilog="exit code: 0 done, 1 refused with nothing changed, 2 wrong usage, 3 failed on the "
        "way, 130 interrupted; docs/runbooks.md",
    )
    one.add_argument("inventory", help="prod, inventories/prod.py or inventories/prod/hosts.yml")
    one.add_argument("name", choices=registry.NAMES, metavar="NAME")
    one.add_argument("hosts", nargs="*", metavar="HOST", help="hosts or groups")
    one.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", type=_option, dest="options",
        help="an option of the runbook: fleet runbook show NAME",
    )  # fmt: skip
    one.add_argument("--why", default="", help="kept on the hosts, for who reads it next")
    one.add_argument("--dry", action="store_true", help="its first checks, and what it would do")
    one.add_argument("--yes", "-y", action="store_true", help="do not ask")
    one.set_defaults(run=_run)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, str(Path(value).absolute()) if name in FILES else value


def _list(_arguments: argparse.Namespace) -> int:
    for name in registry.NAMES:
        print(f"{name:20} {registry.runbook(name).summary}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    print(registry.runbook(arguments.name).described)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    book, options = registry.runbook(arguments.name), dict(arguments.options)
    unknown = sorted(set(options) - set(book.options))
    if unknown:
        known = ", ".join(book.options) or "none"
        print(f"{book.name} has no option {unknown[0]}; it has {known}", file=sys.stderr)
        return USAGE
    fleet = load_fleet(arguments.inventory)
    hosts = hosts_for(book, fleet, arguments.hosts)
    if isinstance(hosts, str):
        print(hosts, file=sys.stderr)
        return USAGE
    own = own_run()
    scene = Scene(
        fleet, hosts, options, own.owner, FleetDoors(fleet), own.as_spec(), arguments.why,
        arguments.yes,
    )  # fmt: skip
    facts = {
        "kind": "runbook", "runbook": book.name, "owner": scene.who, "hosts": hosts,
        "why": arguments.why, "options": options,
    }  # fmt: skip
    try:
        if arguments.dry:
            return run(book, scene, dry=True)
        kept = recorded.begin(fleet, f"runbook {book.name}", scene.who, hosts)
        scene = replace(scene, doors=FleetDoors(fleet, recorded.teller(kept)))
        return recorded.run(fleet, facts, kept, lambda: run(book, scene, dry=False))
    except KeyboardInterrupt:
        print(f"interrupted. {book.after_failure}".rstrip(), file=sys.stderr)
        return INTERRUPTED


def hosts_for(book: Runbook, fleet: Fleet, given: Sequence[str]) -> list[str] | str:
    """Those that a runbook is run on, or what is wrong with the choice."""
    if not given and book.group == "gpu":
        return f"{book.name} wants hosts: name them, or a group such as {fleet.name}"
    chosen = facts_commands.chosen(fleet, given)
    hosts = [host for host in chosen if not book.group or book.group in fleet.hosts[host].groups]
    if not hosts:
        message, fix = f"none is in the group {book.group}.", "name hosts of it."
        raise SettingsError([Problem(fleet.name, None, "", None, None, message, fix)])
    if book.one and len(hosts) > 1:
        return f"{book.name} takes one host at a time, and {len(hosts)} are named"
    return hosts


@dataclass(frozen=True)
class FleetDoors:
    """How a runbook reaches hosts and commands, for real. on_line: where it is told, and kept."""

    fleet_of: Fleet
    on_line: Callable[[str], None] | None = None

    def ask(
        self, command: str, requests: Mapping[str, Mapping[str, Any]], timeout_seconds: int
    ) -> asking.Answers:
        return asking.ask(self.fleet_of, command, requests, timeout_seconds)

    def fleet(self, words: Sequence[str]) -> tuple[int, str]:
        lines = []
        with subprocess.Popen(
            [sys.executable, "-m", "pyinfra_deploy.cli", *words],
            cwd=self.fleet_of.root, env=os.environ | {hooks.WITHIN: "1"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if "--json" not in words:
                    self.say(f"    {line.rstrip()}")
        return process.returncode, "".join(lines)

    def deploy(self, hosts: Sequence[str], deploy: str) -> tuple[int, list[str]]:
        line = child.command_line(self.fleet_of, hosts, DEPLOYS / deploy, {})
        ran = child.run(line, self.fleet_of.root, {})
        return ran.code, list(ran.lines)

    def facts(self, hosts: Sequence[str], directory: Path) -> list[str]:
        return facts_commands.collect(self.fleet_of, hosts, directory)[0]

    def confirmed(self, question: str) -> bool:
        return confirmed(question)

    def say(self, text: str) -> None:
        if self.on_line is not None:
            self.on_line(text)
        else:
            print(mask(text), flush=True)

    def mask(self, text: str) -> str:
        return mask(text)
