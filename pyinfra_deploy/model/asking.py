"""Asking the hosts of an inventory about their models."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy import reading
from pyinfra_deploy.facts_commands import chosen
from pyinfra_deploy.settings.fleet import load_fleet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from pyinfra_deploy.settings.fleet import Fleet

DEPLOYS = Path(__file__).resolve().parents[1] / "deploys"
TIMEOUT_SECONDS = 600.0
INCOMPLETE = 2


def add_hosts(command: Any) -> None:
    """INVENTORY and --limit; `command` is an argparse parser."""
    command.add_argument(
        "inventory", help="prod, inventories/prod.py or inventories/prod/hosts.yml"
    )
    command.add_argument(
        "--limit", action="append", default=[], metavar="HOSTS", help="hosts or groups, with commas"
    )


def engine_hosts(arguments: argparse.Namespace) -> tuple[Fleet, list[str]]:
    """The inventory, and which of its chosen hosts have models."""
    fleet = load_fleet(arguments.inventory)
    hosts = chosen(fleet, arguments.limit)
    return fleet, [host for host in hosts if "gpu" in fleet.hosts[host].groups]


def ask(
    fleet: Fleet,
    hosts: Sequence[str],
    deploy: str = "list_models.py",
    data: Mapping[str, str] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    on_line: Callable[[str], None] | None = None,
) -> tuple[dict[str, dict[str, Any]], str]:
    """{host: its answer} of the hosts that were reached, and what pyinfra said, each line of which
    on_line is called with as it comes."""
    if not hosts:
        return {}, ""
    with tempfile.TemporaryDirectory(prefix="fleet-models-") as name:
        line = reading.command_line(
            fleet, hosts, DEPLOYS / deploy, {"models_directory": name, **(data or {})}
        )
        printed = reading.run(line, fleet.root, timeout_seconds, on_line)
        answers = {path.stem: json.loads(path.read_text()) for path in Path(name).glob("*.json")}
    return answers, printed


def say_what_is_missing(
    hosts: Sequence[str], answers: Mapping[str, Mapping[str, Any]], printed: str
) -> bool:
    """Name hosts without an answer on stderr; whether there are any."""
    missed = [host for host in hosts if "refused" in answers.get(host, {"refused": ()})]
    if any(host not in answers for host in missed):
        for line in printed.splitlines()[-20:]:
            print(f"  | {line}", file=sys.stderr)
    if missed:
        print(f"NOT read: {', '.join(missed)}", file=sys.stderr)
    return bool(missed)
