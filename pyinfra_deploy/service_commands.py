"""`fleet drain`, `fleet undrain`, `fleet logs`: one host, by hand."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.facts_commands import chosen
from pyinfra_deploy.operations.run import own_run
from pyinfra_deploy.rollout import asking
from pyinfra_deploy.rollout.masking import mask
from pyinfra_deploy.settings.fleet import load_fleet
from pyinfra_deploy.settings.problems import Problem, SettingsError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from pyinfra_deploy.settings.fleet import Fleet

INVENTORY = "prod, inventories/prod.py or inventories/prod/hosts.yml"
LOGS = ("engine", "golive", "watch", "gateway", "nginx")
# Beyond what a host may take to answer.
MARGIN_SECONDS = 60


def register(commands: Any) -> None:
    """`commands` is argparse's object for subcommands, which has no public type."""
    drain = _command(
        commands,
        "drain",
        "take hosts out of service: no new requests, running ones end",
        "exit code: 0 drained, 1 refused or not reached, 3 requests still ran when the time was up",
    )
    drain.add_argument("--why", required=True, help="kept with the flag, for who reads it next")
    drain.add_argument(
        "--wait", type=int, default=None, metavar="SECONDS",
        help="for running requests to end (default: engine.drain_seconds)",
    )  # fmt: skip
    drain.set_defaults(run=_drain)
    undrain = _command(commands, "undrain", "put hosts back into service", "")
    undrain.set_defaults(run=_undrain)
    logs = _command(commands, "logs", "what a host's services said last", "")
    logs.add_argument("--of", choices=LOGS, default="engine", help="which one (engine)")
    logs.add_argument("--lines", type=int, default=100, help="how many (100)")
    logs.set_defaults(run=_logs)


def _command(commands: Any, name: str, what: str, epilog: str) -> Any:
    parser = commands.add_parser(name, help=what, epilog=epilog)
    parser.add_argument("inventory", help=INVENTORY)
    parser.add_argument("hosts", nargs="+", metavar="HOST", help="hosts or groups")
    return parser


def _engines(arguments: argparse.Namespace, *, engine: bool = True) -> tuple[Fleet, dict[str, str]]:
    """{host: its engine's name}. Raises SettingsError for a host without one."""
    fleet = load_fleet(arguments.inventory)
    hosts = chosen(fleet, arguments.hosts)
    without = [host for host in hosts if "gpu" not in fleet.hosts[host].groups]
    if without and engine:
        names = ", ".join(without)
        message, fix = f"{names} has no engine.", "name hosts of the group gpu."
        raise SettingsError([Problem(arguments.inventory, None, "", None, None, message, fix)])
    return fleet, {host: fleet.hosts[host].settings.engine.name for host in hosts}


def _drain(arguments: argparse.Namespace) -> int:
    fleet, engines = _engines(arguments)
    waits = {
        host: fleet.hosts[host].settings.engine.drain_seconds
        if arguments.wait is None
        else arguments.wait
        for host in engines
    }
    who = own_run().owner
    requests = {
        host: {
            "engine": name, "by": who, "reason": arguments.why, "wait_seconds": waits[host],
        }
        for host, name in engines.items()
    }  # fmt: skip
    longest = max(waits.values()) + MARGIN_SECONDS
    answers = asking.ask(fleet, "service drain", requests, timeout_seconds=longest)
    for host, answer in answers.items():
        print(f"{host}: {drained_in_words(answer)}")
    busy = any(answer["running"] for answer in answers.values())
    return 1 if _told_missing(answers) else 3 if busy else 0


def drained_in_words(answer: Mapping[str, Any]) -> str:
    flag, running = answer["drain"] or {}, answer["running"]
    already = "" if answer["changed"] else f" (already, by {flag.get('by')}: {flag.get('reason')})"
    if running is None:
        return f"drained{already}; the engine does not tell what runs"
    left = f"{running:g} requests still run" if running else "no request runs"
    return f"drained{already}; {left}"


def _undrain(arguments: argparse.Namespace) -> int:
    fleet, engines = _engines(arguments)
    who = own_run().owner
    requests = {host: {"engine": name, "by": who} for host, name in engines.items()}
    answers = asking.ask(fleet, "service undrain", requests)
    for host, answer in answers.items():
        was = answer["drain"] or {}
        said = f"serves again (was drained by {was.get('by')}: {was.get('reason')})"
        print(f"{host}: {said if answer['changed'] else 'was not drained'}")
    return _told_missing(answers)


def _logs(arguments: argparse.Namespace) -> int:
    fleet, engines = _engines(arguments, engine=False)
    requests = {
        host: {"engine": name, "of": arguments.of, "lines": arguments.lines}
        for host, name in engines.items()
    }
    answers = asking.ask(fleet, "service logs", requests)
    for host, answer in answers.items():
        for line in answer["lines"]:
            print(f"{host}  {mask(line)}" if len(engines) > 1 else mask(line))
    return _told_missing(answers)


def _told_missing(answers: asking.Answers) -> int:
    for host in answers.missing:
        print(f"{host}: NOT DONE: {answers.problem(host)}", file=sys.stderr)
    return 1 if answers.missing else 0
