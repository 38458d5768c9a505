"""`fleet model list`: what models hosts have, their size, and which releases refer to them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.model.asking import (
    INCOMPLETE,
    add_hosts,
    ask,
    engine_hosts,
    say_what_is_missing,
)
from pyinfra_deploy.planning.model_lock_changes import size_words

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping


def register(actions: Any) -> None:
    """Add `list`; `actions` is argparse's object for subcommands, which has no public type."""
    command = actions.add_parser(
        "list", help="models on hosts: size, when verified, used by which release"
    )
    add_hosts(command)
    command.add_argument("--json", action="store_true", help="print one JSON document")
    command.set_defaults(run=_list)


def _list(arguments: argparse.Namespace) -> int:
    """Exit code: 0 every host was asked, 2 some could not be."""
    fleet, hosts = engine_hosts(arguments)
    answers, printed = ask(fleet, hosts)
    if arguments.json:
        print(json.dumps(answers, indent=1))
    else:
        for host in hosts:
            print("\n".join(report(host, answers.get(host) or {"refused": ["not reached"]})))
    return INCOMPLETE if say_what_is_missing(hosts, answers, printed) else 0


def report(host: str, answer: Mapping[str, Any]) -> list[str]:
    """One host for the operator: a line a model, what nobody refers to marked."""
    if "refused" in answer:
        return [f"{host}: {'; '.join(answer['refused']) or 'no answer'}"]
    rows = answer["models"]
    unused = sum(row["used_bytes"] for row in rows if not row["releases"])
    lines = [
        f"{host}: {size_words(answer['free_bytes'])} free, {len(rows)} models"
        + (f", {size_words(unused)} in models that no release refers to" if unused else "")
    ]
    for row in rows:
        users = ", ".join(row["releases"]) or "no release"
        serving = f", served by {', '.join(row['engines'])}" if row["engines"] else ""
        lines.append(
            f"  {row['name']}: {row['files']} files, {size_words(row['used_bytes'])}, verified "
            f"{row['verified_at'] or 'never'}{_state(row)}; used by {users}{serving}"
        )
    lines += [
        f"  {row['name']}: {size_words(row['bytes'])} of a pull or a removal that is not finished"
        for row in answer["unfinished"]
    ]
    return lines


def _state(row: Mapping[str, Any]) -> str:
    found = []
    if problem := row.get("problem"):
        found.append(f"its RECORD CANNOT BE READ ({problem.rstrip('.')})")
    if row["damaged"]:
        found.append(f"{len(row['damaged'])} files DAMAGED, {row['damaged'][0]} first")
    if row["touched"]:
        found.append(f"{len(row['touched'])} files touched since, {row['touched'][0]} first")
    if extra := row.get("extra"):
        found.append(f"{len(extra)} files do not belong, {extra[0]} first")
    return "".join(f", {text}" for text in found)
