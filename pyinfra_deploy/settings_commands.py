"""`fleet settings check` and `fleet settings docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.operations.model_source import locked_model
from pyinfra_deploy.settings.documentation import settings_page
from pyinfra_deploy.settings.fleet import Fleet, load_fleet, refuse_missing
from pyinfra_deploy.settings.problems import Problem, SettingsError
from pyinfra_deploy.settings.secret import Secret

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

PAGE = Path("docs/settings.md")


def register(commands: Any) -> None:
    """Add `settings`; `commands` is argparse's object for subcommands, which has no public type."""
    group = commands.add_parser("settings", help="check inventories and group_vars")
    actions = group.add_subparsers(required=True, metavar="ACTION")

    check = actions.add_parser("check", help="check all settings of all hosts, contacting none")
    check.add_argument("inventory", help="prod, inventories/prod.py or inventories/prod/hosts.yml")
    check.add_argument(
        "--secrets", action="store_true", help="also look every secret up (they are not shown)"
    )
    check.set_defaults(run=_check)

    docs = actions.add_parser("docs", help=f"write {PAGE} from the schema")
    docs.add_argument("--check", action="store_true", help="only tell whether it is up to date")
    docs.set_defaults(run=_docs)


def _check(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    refuse_missing(fleet)
    _refuse_locks(fleet)
    if arguments.secrets:
        _reveal_all(fleet)
    for warning in fleet.warnings:
        print(f"warning: {warning}")
    hosts, warned = len(fleet.hosts), len(fleet.warnings)
    print(
        f"{fleet.name}: {hosts} host{'' if hosts == 1 else 's'}, no problems"
        + (f", {warned} warning{'' if warned == 1 else 's'}." if warned else ".")
    )
    return 0


def _refuse_locks(fleet: Fleet) -> None:
    """A model's lock that could not be used, or is not signed as asked. Raises SettingsError."""
    problems = []
    for name, host in fleet.hosts.items():
        if "gpu" not in host.groups or host.settings.model is None:
            continue
        locked = locked_model(host.settings.model, fleet.root)
        if locked.problem:
            place = str(host.settings.model.lock)
            why = f"{locked.problem.removeprefix(f'{place}: ')}."
            problems.append(Problem(place, None, "model.lock", name, None, why, f"{locked.fix}."))
    if problems:
        raise SettingsError(problems)


def _reveal_all(fleet: Fleet) -> None:
    problems: list[Problem] = []
    for host in fleet.hosts.values():
        model = host.settings.model
        secrets = [*_secrets(host.variables), *_secrets(host.connection)]
        secrets += [model.token] if model and model.token else []
        for secret in secrets:
            try:
                secret.reveal()
            except SettingsError as error:
                problems += error.problems
    if problems:
        raise SettingsError(problems)


def _secrets(value: Any) -> Iterator[Secret]:
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _secrets(item)
    elif isinstance(value, list):
        for item in value:
            yield from _secrets(item)


def _docs(arguments: argparse.Namespace) -> int:
    text = settings_page()
    if not arguments.check:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text, encoding="utf-8")
        print(PAGE)
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE} does not agree with the schema: run `fleet settings docs`.", file=sys.stderr)
    return 1
