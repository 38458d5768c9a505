"""`fleet model ACTION`: each action is a module of its own beside this one."""

from __future__ import annotations

import importlib
from typing import Any

# Modules with `register(actions)`, which adds one action and sets the default `run`, as in cli.py.
ACTIONS: tuple[str, ...] = (
    "pyinfra_deploy.model.lock",
    "pyinfra_deploy.model.sign",
    "pyinfra_deploy.model.listing",
    "pyinfra_deploy.model.status",
    "pyinfra_deploy.model.remove",
    "pyinfra_deploy.model.verify",
)


def register(commands: Any) -> None:
    """Add `model`; `commands` is argparse's object for subcommands, which has no public type."""
    group = commands.add_parser("model", help="locks of models, and what hosts have of them")
    actions = group.add_subparsers(required=True, metavar="ACTION")
    for module in ACTIONS:
        importlib.import_module(module).register(actions)
