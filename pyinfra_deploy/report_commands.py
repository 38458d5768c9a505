"""`fleet report`: the record and the page of a rollout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.rollout import record
from pyinfra_deploy.settings.fleet import locate

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def register(commands: Any) -> None:
    """Add `report`; `commands` is argparse's object for subcommands, which has no public type."""
    group = commands.add_parser("report", help="what a rollout or rollback did")
    actions = group.add_subparsers(required=True, metavar="ACTION")
    for name, what in (
        ("open", "open the page in a browser, or say where it is"),
        ("show", "print the record, as JSON"),
    ):
        action = actions.add_parser(name, help=what)
        action.add_argument(
            "inventory", help="prod, inventories/prod.py or inventories/prod/hosts.yml"
        )
        action.add_argument("id", nargs="?", default="", help="of the run; default: the newest")
        action.set_defaults(run=_open if name == "open" else _show)


def _found(arguments: argparse.Namespace) -> tuple[Path, dict[str, Any] | None]:
    name, _, root = locate(arguments.inventory)
    found = record.newest(root, name, arguments.id)
    if found is None:
        which = f"{arguments.id!r}" if arguments.id else "any run"
        place = record.directory_of(root, name)
        print(f"there is no report of {which} in {place}", file=sys.stderr)
    return root, found


def _open(arguments: argparse.Namespace) -> int:
    root, found = _found(arguments)
    if found is None:
        return 1
    page = record.page_of(root, found)
    print(page)
    opener = shutil.which("xdg-open") or shutil.which("open")
    if opener and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        subprocess.run([opener, str(page)], check=False)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    _, found = _found(arguments)
    if found is None:
        return 1
    print(json.dumps(found, indent=1))
    return 0
