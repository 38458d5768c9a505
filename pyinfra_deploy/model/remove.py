"""`fleet model remove`: free the disk of models that no release refers to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.model.asking import INCOMPLETE, add_hosts, ask, engine_hosts
from pyinfra_deploy.model.refused import Refused
from pyinfra_deploy.operations.model_source import locked_model
from pyinfra_deploy.planning import wanted
from pyinfra_deploy.planning.model_lock_changes import size_words

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from pyinfra_deploy.settings.fleet import Fleet

REFUSED = 1
# Freeing hundreds of gigabytes, on every host of a run.
TIMEOUT_SECONDS = 4 * 3600.0


def register(actions: Any) -> None:
    """Add `remove`; `actions` is argparse's object for subcommands, which has no public type."""
    command = actions.add_parser(
        "remove",
        help="remove models that no release refers to",
        description="Removes models from hosts: those that are named, as `fleet model list` names "
        "them, or with --unused all that no release refers to. The model that the settings ask for "
        "stays in any case. What an unfinished pull has left goes only by its name.",
        epilog="exit code: 0 done, 1 refused, 2 some hosts could not be asked or did not do it",
    )
    add_hosts(command)
    command.add_argument("models", nargs="*", metavar="OWNER--NAME/REVISION")
    command.add_argument("--unused", action="store_true", help="all that no release refers to")
    command.add_argument("--dry-run", action="store_true", help="only tell what would go")
    command.set_defaults(run=_remove)


def _remove(arguments: argparse.Namespace) -> int:
    fleet, hosts = engine_hosts(arguments)
    answers, printed = ask(fleet, hosts)
    try:
        doomed = chosen_models(fleet, answers, arguments.models, unused=arguments.unused)
    except Refused as error:
        print(error, file=sys.stderr)
        return REFUSED
    read = [host for host in hosts if "models" in answers.get(host, {})]
    failed = [host for host in hosts if host not in read]
    for host in read:
        for row in doomed.get(host, ()):
            print(f"{host}: {row['name']}, {size_words(row['used_bytes'])}"
                  + (" would go" if arguments.dry_run else ""))  # fmt: skip
        if not doomed.get(host):
            print(f"{host}: nothing to remove")
    if not arguments.dry_run:
        # Hosts with the same models together: one run of pyinfra for most fleets.
        together: dict[tuple[str, ...], list[str]] = {}
        for host, rows in doomed.items():
            if rows:
                together.setdefault(tuple(row["name"] for row in rows), []).append(host)
        for names, those in together.items():
            done, said = ask(
                fleet, those, "remove_models.py", {"models": ",".join(names)}, TIMEOUT_SECONDS
            )
            for host in those:
                if host in done:
                    print(f"{host}: removed, {size_words(done[host]['freed_bytes'])} freed")
            missed = [host for host in those if host not in done]
            printed = said if missed else printed
            failed += missed
    if failed:
        for line in printed.splitlines()[-20:]:
            print(f"  | {line}", file=sys.stderr)
        print(f"NOT done: {', '.join(failed)}", file=sys.stderr)
        return INCOMPLETE
    return 0


def chosen_models(
    fleet: Fleet,
    answers: Mapping[str, Mapping[str, Any]],
    names: Sequence[str],
    *,
    unused: bool,
) -> dict[str, list[Mapping[str, Any]]]:
    """{host: rows of the models to remove}. Raises Refused, before any host is touched, when one
    is referred to, is what settings ask for, or is on no host."""
    if bool(names) == unused:
        raise Refused(
            "which models are to go?",
            "either names are given or --unused.",
            "fleet model list INVENTORY shows them.",
        )
    read = {host: answer for host, answer in answers.items() if "models" in answer}
    asked_for = {host: _asked_for(fleet, host) for host in read}
    found: dict[str, list[Mapping[str, Any]]] = {}
    kept: list[str] = []
    for host, answer in read.items():
        for row in answer["models"]:
            name = row["name"]
            why = f"release {', '.join(row['releases'])} refers to it" if row["releases"] else ""
            if name == asked_for[host]:
                why = why or "the settings ask for it"
            if why and name in names:
                kept.append(f"{host}: {name}: {why}")
            elif not why and (unused or name in names):
                found.setdefault(host, []).append(row)
        here = {row["name"] for row in answer["models"]}
        for left in answer["unfinished"]:
            # Only by name: the next deploy may want to go on with it.
            if left["name"] in names and left["name"] not in here:
                row = {"name": left["name"], "used_bytes": left["bytes"]}
                found.setdefault(host, []).append(row)
    if kept:
        raise Refused(
            "nothing was removed",
            f"{len(kept)} of the named models are needed: {kept[0]}.",
            "deploy other releases until these are pruned (engine.keep_releases), or narrow it "
            "down with --limit.",
            kept[:20],
        )
    known = {
        row["name"]
        for answer in read.values()
        for row in (*answer["models"], *answer["unfinished"])
    }
    unknown = sorted(set(names) - known)
    if unknown and read:
        raise Refused(
            f"no host has {unknown[0]}",
            f"they have {', '.join(sorted(known)) or 'no model'}.",
            "names are those of fleet model list: OWNER--NAME/REVISION.",
        )
    return found


def _asked_for(fleet: Fleet, host: str) -> str | None:
    settings = fleet.hosts[host].settings
    if settings.model is None:
        return None
    locked = locked_model(settings.model, fleet.root)
    return f"{wanted.model_slug(settings)}/{wanted.model_revision(settings, locked.lock)}"
