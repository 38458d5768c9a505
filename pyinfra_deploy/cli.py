"""`fleet`: what an operator does beside `pyinfra inventories/NAME.py deploy.py`."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING

from pyinfra_deploy.settings.problems import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

# A module with `register(commands)`, which adds its subcommand and sets the default `run`, a
# function of the parsed arguments that returns the exit code.
COMMANDS = (
    "pyinfra_deploy.settings.commands",
    "pyinfra_deploy.keys.commands",
    "pyinfra_deploy.facts_commands",
    "pyinfra_deploy.plan_commands",
    "pyinfra_deploy.findings_commands",
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fleet", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in COMMANDS:
        importlib.import_module(module).register(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 refused or failed (the reason is on stderr), 2 wrong usage."""
    parsed = build_parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())
