"""`fleet model status`: how far each host is with the model that its settings ask for."""

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
from pyinfra_deploy.operations.jobs import describe_progress
from pyinfra_deploy.operations.model_source import locked_model
from pyinfra_deploy.planning import wanted
from pyinfra_deploy.planning.model_lock_changes import size_words

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

    from pyinfra_deploy.settings.schema import Settings

LACKING = 1


def register(actions: Any) -> None:
    """Add `status`; `actions` is argparse's object for subcommands, which has no public type."""
    command = actions.add_parser(
        "status",
        help="how far each host is with its model: pulled, being pulled, damaged",
        epilog="exit code: 0 all have it, 1 some do not yet, 2 some could not be asked",
    )
    add_hosts(command)
    command.add_argument("--json", action="store_true", help="print one JSON document")
    command.set_defaults(run=_status)


def _status(arguments: argparse.Namespace) -> int:
    fleet, hosts = engine_hosts(arguments)
    answers, printed = ask(fleet, hosts)
    states = {
        host: state_of(fleet.hosts[host].settings, answers[host], fleet.root)
        for host in hosts
        if "models" in answers.get(host, {})
    }
    if arguments.json:
        print(json.dumps(states, indent=1))
    else:
        width = max((len(host) for host in states), default=0)
        for host, found in states.items():
            print(f"{host:{width}}  {found['model']}: {found['text']}")
    if say_what_is_missing(hosts, answers, printed):
        return INCOMPLETE
    return 0 if all(found["state"] == "here" for found in states.values()) else LACKING


def state_of(settings: Settings, answer: Mapping[str, Any], root: Path) -> dict[str, str]:
    """{model, state, text}; state: here, pulling, failed, other, damaged, absent or unknown."""
    assert settings.model is not None
    locked = locked_model(settings.model, root)
    if locked.problem:
        return {"model": settings.model.id, "state": "unknown", "text": locked.problem}
    name = f"{wanted.model_slug(settings)}/{wanted.model_revision(settings, locked.lock)}"
    state, text = _state(name, answer, locked.lock.digest if locked.lock else None)
    return {"model": name, "state": state, "text": text}


def _state(name: str, answer: Mapping[str, Any], digest: str | None) -> tuple[str, str]:
    row = next((row for row in answer["models"] if row["name"] == name), None)
    job = answer.get("job") or {}
    if job.get("state") == "running":
        return "pulling", describe_progress(job.get("progress") or {})
    if row is not None:
        return _of_published(row, digest)
    if job.get("state") == "failed":
        error = job.get("error") or {}
        why = f"{error.get('what', 'without a word')}: {error.get('why', '')}".rstrip(": ")
        return "failed", f"the last pull failed, {why}"
    left = sum(one["bytes"] for one in answer["unfinished"] if one["name"] == name)
    if left:
        return "absent", f"a pull was given up with {size_words(left)} here; a deploy goes on"
    return "absent", f"not here; {size_words(answer['free_bytes'])} free"


def _of_published(row: Mapping[str, Any], digest: str | None) -> tuple[str, str]:
    if problem := row.get("problem"):
        return "damaged", problem
    if digest is not None and row["model_digest"] != digest:
        return "other", f"digest {row['model_digest'][:12]}, and the lock has {digest[:12]}"
    wrong = row["damaged"] or row["touched"]
    if wrong:
        how = "damaged" if row["damaged"] else "touched since they were verified"
        return "damaged", f"{len(wrong)} files {how}, {wrong[0]} first; a deploy mends them"
    extra = row.get("extra") or []
    if extra:
        return "damaged", f"{len(extra)} files do not belong, {extra[0]} first; a deploy moves them"
    deep = row.get("deep_verified_at") or row.get("verified_at")
    return "here", f"{row['files']} files, {size_words(row['bytes'] or 0)}, verified {deep}" + (
        f", used by {', '.join(row['releases'])}" if row["releases"] else ""
    )
