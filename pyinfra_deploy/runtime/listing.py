"""`fleet runtime list`: what runtimes hosts have, their size, build time and who uses them."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy import reading
from pyinfra_deploy.facts_commands import add_choice, chosen
from pyinfra_deploy.settings.fleet import load_fleet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from pyinfra_deploy.settings.fleet import Fleet

DEPLOY = Path(__file__).resolve().parents[1] / "deploys" / "list_runtimes.py"
TIMEOUT_SECONDS = 600.0
INCOMPLETE = 2


def register(actions: Any) -> None:
    """Add `list`; `actions` is argparse's object for subcommands, which has no public type."""
    command = actions.add_parser(
        "list", help="runtimes and releases on hosts: size, build time, used by which release"
    )
    command.add_argument(
        "inventory", help="prod, inventories/prod.py or inventories/prod/hosts.yml"
    )
    add_choice(command)
    command.add_argument("--json", action="store_true", help="print one JSON document")
    command.set_defaults(run=_list)


def _list(arguments: argparse.Namespace) -> int:
    """Exit code: 0 every host was asked, 2 some could not be."""
    fleet = load_fleet(arguments.inventory)
    named = chosen(fleet, arguments.limit, arguments.exclude)
    hosts = [host for host in named if "gpu" in fleet.hosts[host].groups]
    answers, printed = ask(fleet, hosts)
    if arguments.json:
        print(json.dumps(answers, indent=1))
    else:
        for host in hosts:
            print("\n".join(report(host, answers.get(host) or {"refused": ["not reached"]})))
    missed = [host for host in hosts if "runtimes" not in answers.get(host, {})]
    if missed:
        if any(host not in answers for host in missed):
            for line in printed.splitlines()[-20:]:
                print(f"  | {line}", file=sys.stderr)
        print(f"NOT read: {', '.join(missed)}", file=sys.stderr)
        return INCOMPLETE
    return 0


def ask(fleet: Fleet, hosts: Sequence[str]) -> tuple[dict[str, dict[str, Any]], str]:
    """{host: its answer} of the hosts that were reached, and what pyinfra said."""
    if not hosts:
        return {}, ""
    with tempfile.TemporaryDirectory(prefix="fleet-runtimes-") as name:
        directory = Path(name)
        data = {"runtimes_directory": name}
        printed = reading.run(
            reading.command_line(fleet, hosts, DEPLOY, data), fleet.root, TIMEOUT_SECONDS
        )
        return {
            path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))
        }, printed


def report(host: str, answer: Mapping[str, Any]) -> list[str]:
    """One host for the operator, a line a runtime and a line a release."""
    if "runtimes" not in answer:
        return [f"{host}: {'; '.join(answer.get('refused') or ['no answer'])}"]
    doomed = answer.get("would_go") or {}
    free = f"{_size(answer['free_bytes'])} free"
    wheels = answer.get("wheels_bytes")
    cache = answer.get("cache_bytes")
    lines = [
        f"{host}: {free}"
        + (f", wheels {_size(wheels)}" if wheels else "")
        + (f", installer's cache {_size(cache)}" if cache else "")
    ]
    for row in answer["runtimes"]:
        used = ", ".join(row["used_by"]) or "no release"
        mark = "  (next to go)" if row["name"] in doomed.get("runtimes", ()) else ""
        if row["state"] != "complete":
            lines.append(f"  runtime {row['name']}: {row['state']}{mark}")
            continue
        lines.append(
            f"  runtime {row['name']}: {_size(row['size_bytes'])}, built in "
            f"{_duration(row['seconds'])}"
            + (f" on {row['built']}" if row.get("built") else "")
            + f", used by {used}{mark}"
        )
    sizes = {row["name"]: row.get("size_bytes") for row in answer["runtimes"]}
    for row in answer["releases"]:
        name = f"{row['engine']}/{row['name']}"
        mark = "  (next to go)" if name in doomed.get("releases", ()) else ""
        held = f" [{row['held']}]" if row["held"] else ""
        live = ", never live"
        if row.get("live_at"):
            live = f", live {row['live_at']} after {_duration(row.get('live_seconds'))}"
        lines.append(
            f"  release {name}{held}: runtime {row['runtime']} "
            f"({_size(sizes.get(row['runtime']))}), model {row['model']} "
            f"({_size(row['model_bytes'])}){live}{mark}"
        )
    return lines


def _size(size_bytes: float | None) -> str:
    return "size not known" if size_bytes is None else f"{size_bytes / 1e9:.2f} GB"


def _duration(seconds: float | None) -> str:
    return "a time not recorded" if seconds is None else f"{seconds:.0f} s"
