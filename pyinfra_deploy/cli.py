"""`fleet`: what an operator does beside `pyinfra inventories/NAME.py deploy.py`."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING

from pyinfra_deploy.settings.problems import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

# A module with `register(commands)`, which adds its subcommands and sets the default `run`, a
# function of the parsed arguments that returns the exit code; and the names of its subcommands.
COMMANDS = {
    "pyinfra_deploy.settings_commands": ("settings",),
    "pyinfra_deploy.keys.commands": ("keys", "ca"),
    "pyinfra_deploy.facts_commands": ("facts",),
    "pyinfra_deploy.plan_commands": ("plan",),
    "pyinfra_deploy.findings_commands": ("findings",),
    "pyinfra_deploy.runtime.commands": ("runtime",),
    "pyinfra_deploy.model.commands": ("model",),
    "pyinfra_deploy.audit_commands": ("audit",),
}


def build_parser(command: str = "") -> argparse.ArgumentParser:
    """The parser of `command`, so that the modules of others are not loaded; of all for any other
    word, such as --help."""
    parser = argparse.ArgumentParser(prog="fleet", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    asked = [module for module, names in COMMANDS.items() if command in names]
    for module in asked or COMMANDS:
        importlib.import_module(module).register(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 refused or failed (the reason is on stderr), 2 wrong usage."""
    words = sys.argv[1:] if arguments is None else arguments
    parsed = build_parser(words[0] if words else "").parse_args(words)
    try:
        code: int = parsed.run(parsed)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())
