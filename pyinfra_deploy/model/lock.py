"""`fleet model lock`: write down exactly which files a model is made of."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.model.making import Made, Wish, make
from pyinfra_deploy.model.places import TOKENS, Place, place_of
from pyinfra_deploy.model.refused import Refused
from pyinfra_deploy.model.source import Asked
from pyinfra_deploy.model.web import origin
from pyinfra_deploy.model.writing import is_written, present_lock, write
from pyinfra_deploy.operations.lock_signature import (
    shown,
    sign_command,
    signature_path,
    signature_problem,
)
from pyinfra_deploy.planning.model_lock import ACCEPTABLE, lock_path
from pyinfra_deploy.planning.model_lock_changes import changes, size_words
from pyinfra_deploy.settings.fleet import load_fleet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pyinfra_deploy.planning.model_lock import ModelLock
    from pyinfra_deploy.settings.schema import Model
    from pyinfra_deploy.settings.secret import Secret

FAILED, DIFFERS = 1, 3
_MODEL = re.compile(
    r"(?P<model>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>.+))?", re.ASCII
)
_REVISION = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_INVENTORY_FILES = (".py", ".yml", ".yaml")
# What a hub's default branch is called.
_BRANCHES = {"modelscope": "master", "huggingface": "main"}


@dataclass(frozen=True)
class Task:
    """One lock to make. named: the settings name its file already. signed_by: whose signature they
    ask for."""

    wish: Wish
    place: Place
    token: Secret | None
    path: Path
    named: bool
    signed_by: tuple[Path, ...] = ()


def register(actions: Any) -> None:
    """Add `lock`; `actions` is argparse's object for subcommands, which has no public type."""
    lock = actions.add_parser(
        "lock",
        help="write down a model's files, each with its size and SHA-256",
        description="Asks a hub, a directory or a web server for a model's files and writes the "
        "lock that model.lock names; updating one tells what changed. Small files (config, index, "
        "tokenizer) are fetched with it, so that `fleet plan` asks no hub.",
        epilog=f"exit code: 0 done, 1 refused or failed, {DIFFERS} with --check: it would change",
    )
    lock.add_argument(
        "what", metavar="MODEL[@REVISION] | INVENTORY",
        help="owner/name as on the hub; or an inventory: the models of its hosts",
    )  # fmt: skip
    lock.add_argument(
        "--from", dest="place", metavar="PLACE",
        help="modelscope (default), huggingface, a directory, or an http address with SHA256SUMS",
    )  # fmt: skip
    lock.add_argument("--endpoint", metavar="URL", help="a mirror of the hub")
    lock.add_argument(
        "--accept", action="append", choices=ACCEPTABLE, default=[],
        help="pickled weights, or code of the repository; with an inventory: model.accept",
    )  # fmt: skip
    lock.add_argument(
        "--without", action="append", default=[], metavar="PATTERN",
        help="leave files out, such as '*.bin' or 'original/*'; default: those of the present lock",
    )  # fmt: skip
    lock.add_argument(
        "--license", metavar="NAME", help="where neither README.md nor the hub names the licence"
    )
    lock.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="default: model.lock, or locks/models/OWNER--NAME/REVISION.json",
    )  # fmt: skip
    lock.add_argument("--check", action="store_true", help="write nothing; tell whether it differs")
    lock.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit code: 0 done, 1 refused, 3 with --check where a lock would change."""
    code = 0
    try:
        for task in tasks(arguments):
            if not _do(task, check=arguments.check):
                code = DIFFERS
    except Refused as error:
        print(error, file=sys.stderr)
        return FAILED
    return code


def tasks(arguments: argparse.Namespace) -> list[Task]:
    """What is to be locked. Raises Refused, SettingsError."""
    what = arguments.what
    match = _MODEL.fullmatch(what)
    if match is None or Path(what).is_file() or what.endswith(_INVENTORY_FILES):
        return list(_of_inventory(arguments))
    place = place_of(arguments.place or "modelscope", arguments.endpoint)
    revision = match["revision"] or _BRANCHES.get(place.hub, "local")
    if "--" in match["model"].split("/")[0]:
        raise Refused(
            f"{match['model']} has '--' in its owner",
            "that stands for the slash in directory names.",
            "such a model is not supported.",
        )
    if not _REVISION.fullmatch(revision) or revision.endswith((".json", ".sig")):
        raise Refused(
            f"{revision!r} cannot be a revision here",
            "it becomes a directory: letters, digits, '.', '_' and '-'; not X.json, not X.sig.",
            "name a tag or the commit instead.",
        )
    path = arguments.output or Path(lock_path(match["model"], revision))
    wish = _wish(arguments, match["model"], revision, tuple(arguments.accept), path)
    return [Task(wish, place, None, path, named=False)]


def _of_inventory(arguments: argparse.Namespace) -> Iterator[Task]:
    fleet = load_fleet(arguments.what)
    models = {host.settings.model for host in fleet.hosts.values() if "gpu" in host.groups}
    seen: dict[Path, Model] = {}
    for model in sorted((one for one in models if one is not None), key=lambda one: one.id):
        path = fleet.root / (model.lock or lock_path(model.id, model.revision))
        other = seen.setdefault(path, model)
        if other is not model:
            if (other.id, other.revision, other.endpoint, other.accept, other.signed_by) == (
                model.id, model.revision, model.endpoint, model.accept, model.signed_by,
            ):  # fmt: skip
                continue
            raise Refused(
                f"{path} would be the lock of two models",
                f"hosts of {fleet.name} have {other.id} and {model.id} with differing settings.",
                "give them different files in model.lock, or the same model.accept, signed_by and "
                "endpoint.",
            )
        if arguments.accept:
            raise Refused(
                "--accept goes without an inventory",
                "with one, its settings decide.",
                f"write model: {{accept: [{', '.join(arguments.accept)}]}}.",
            )
        if arguments.output is not None:
            raise Refused(
                "--output goes without an inventory",
                "with one, model.lock says where the lock is.",
                "leave it out, or lock the model by its name.",
            )
        place = Place(model.hub, arguments.endpoint or model.endpoint)
        if arguments.place:
            place = place_of(arguments.place, arguments.endpoint)
        wish = _wish(arguments, model.id, model.revision, model.accept, path)
        keys = tuple(fleet.root / key for key in model.signed_by)
        token = _token_for(place, model)
        yield Task(wish, place, token, path, named=model.lock is not None, signed_by=keys)
    if not seen:
        raise Refused(
            f"{fleet.name} has no model to lock",
            "none of its hosts is in the group gpu.",
            "name a model: fleet model lock OWNER/NAME",
        )


def _token_for(place: Place, model: Model) -> Secret | None:
    """The token of the settings belongs to their hub: no other host gets it."""
    if place.hub == model.hub and origin(place.endpoint) == origin(model.endpoint):
        return model.token
    variable = TOKENS.get(place.hub)
    if model.token is not None and variable is not None:
        print(f"  note: model.token is not sent to {place.endpoint}, which is not the hub of the "
              f"settings; {variable} would be")  # fmt: skip
    return None


def _wish(
    arguments: argparse.Namespace, model: str, revision: str, accepts: tuple[str, ...], path: Path
) -> Wish:
    """What a lock has left out, and a licence that somebody stated, hold until told otherwise."""
    old = present_lock(path)
    left_out, stated = tuple(arguments.without), arguments.license
    if old is not None:
        left_out = left_out or old.left_out
        stated = stated or (old.license if old.license_from == "the operator" else None)
    return Wish(model, revision, tuple(sorted(set(accepts))), left_out, stated)


def _do(task: Task, *, check: bool) -> bool:
    """False: it differs, and was not written."""
    old = present_lock(task.path)
    token = task.token.reveal() if task.token is not None else None
    asked = Asked(task.wish.model, task.wish.revision, task.wish.leaves_out)
    made = make(task.place.asker(token), asked, task.wish)
    print(summary(made.lock))
    for note in made.notes:
        print(f"  note: {note}")
    if is_written(made, task.path):
        print(f"{shown(task.path)}: as it was")
        _about_signature(task, made.lock, refuse=check)
        return True
    for line in _differences(old, made):
        print(f"  {line}")
    if check:
        print(f"{shown(task.path)}: differs; nothing is written")
        return False
    write(made, task.path)
    print(f"{shown(task.path)}: written")
    _about_signature(task, made.lock, refuse=False)
    if not task.named:
        print(f"  to use it, in group_vars: model: {{id: {task.wish.model}, "
              f"revision: {task.wish.revision}, lock: {shown(task.path)}}}")  # fmt: skip
    return True


def _about_signature(task: Task, lock: ModelLock, *, refuse: bool) -> None:
    """Say that a lock has to be signed (anew), or refuse one that is not as settings ask."""
    signature = signature_path(task.path)
    if not task.signed_by:
        if signature.exists():
            print(f"  {shown(signature)} is the signature of what it was; after a change: "
                  f"{sign_command(task.path)}")  # fmt: skip
        return
    wrong = signature_problem(task.path, lock, task.signed_by)
    if wrong is None:
        print("  signed, as model.signed_by asks")
    elif refuse:
        raise Refused(f"{shown(task.path)} is not signed as model.signed_by asks",
                      f"{wrong.why}.", f"{wrong.fix}.")  # fmt: skip
    else:
        print(f"  NOT signed as model.signed_by asks: {wrong.why}")
        print(f"    until it is, plan and deploy refuse it; {wrong.fix}")


def summary(lock: ModelLock) -> str:
    commit = f"commit {lock.commit[:12]}" if lock.commit else "no commit"
    named = f"licence {lock.license} ({lock.license_from})" if lock.license else "licence not named"
    extra = f", with {' and '.join(lock.accepts)}" if lock.accepts else ""
    return (
        f"{lock.model} at {lock.revision} from {lock.endpoint}: {commit}, {named}\n"
        f"  {len(lock.files)} files, {size_words(lock.total_bytes)}{extra}; "
        f"on hosts {lock.model.replace('/', '--')}/{lock.directory}"
    )


def _differences(old: ModelLock | None, made: Made) -> list[str]:
    if old is None:
        return []
    found = changes(old, made.lock)
    if found:
        return found
    same = replace(made.lock, files=old.files)
    return ["the small files beside it were missing or changed"] if same == old else []
