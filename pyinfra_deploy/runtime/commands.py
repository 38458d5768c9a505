"""`fleet runtime ACTION`: each action is a module of its own beside this one."""

from __future__ import annotations

import importlib
from typing import Any

# Modules with `register(actions)`, which adds one action and sets the default `run`, as in cli.py.
ACTIONS: tuple[str, ...] = (
    "pyinfra_deploy.runtime.lock",
    "pyinfra_deploy.runtime.wheelhouse",
    "pyinfra_deploy.runtime.listing",
    "pyinfra_deploy.runtime.flags",
)


def register(commands: Any) -> None:
    """Add `runtime`; `commands` is argparse's object for subcommands, which has no public type."""
    group = commands.add_parser("runtime", help="locks, wheels and runtimes of vLLM")
    actions = group.add_subparsers(required=True, metavar="ACTION")
    for module in ACTIONS:
        importlib.import_module(module).register(actions)
