"""Published models on this host: which there are, who refers to them, and removing one when asked.

What may go is read from the releases each time, never from a list: a release that names a model
keeps it, whether it runs or not, and an open go-live names releases.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any

from . import durable, engine, events, fields, layout, locking, model_record, prune
from .errors import HostError
from .listing import name_problem

REMOVING = ".removing"


def root() -> Path:
    return layout.llm_root() / "models"


def name_of(directory: Path) -> str:
    """OWNER--NAME/REVISION."""
    return f"{directory.parent.name}/{directory.name}"


def published() -> list[Path]:
    """Directories that have a record beside them."""
    found = []
    for record in sorted(root().glob("*/*.json")):
        directory = record.with_name(record.name[: -len(".json")])
        if not record.name.startswith(".") and not record.parent.name.startswith("."):
            found.append(directory)
    return found


def users() -> dict[str, list[str]]:
    """OWNER--NAME/REVISION -> the releases (ENGINE/ID) that refer to it."""
    found: dict[str, list[str]] = {}
    for link in sorted((layout.llm_root() / "engines").glob("*/releases/*/model")):
        if link.is_symlink() and not link.parent.name.startswith("."):
            home = link.parents[2].name
            found.setdefault(name_of(link.readlink()), []).append(f"{home}/{link.parent.name}")
    return found


def engines_running(name: str) -> list[str]:
    """Engines whose current release has this model. Not from what they noted at their start, which
    the user of a verification may not read."""
    pairs = [release.split("/") for release in users().get(name, [])]
    return sorted({home for home, one in pairs if engine.linked(home, "current") == one})


def used_bytes(directory: Path) -> int:
    """What a tree takes on the disk; files that others link to as well count in full."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            found = os.lstat(Path(parent, name))
            if stat.S_ISREG(found.st_mode):
                total += found.st_blocks * 512
    return total


def listing(_request: dict[str, Any]) -> dict[str, Any]:
    """`model list` -> {models: [...], unfinished: [{name, bytes}], free_bytes}.

    A model: {name, problem, model_id, revision, commit, model_digest, files, bytes, used_bytes,
    verified_at, deep_verified_at, touched: [path], damaged: [path], extra: [path],
    releases: [ENGINE/ID], engines: [name]}.
    problem: why its record cannot be read, null where it can. engines: whose current release has
    it. unfinished: what pulls have left in models/.incoming, aside directories among them, and
    directories without a record, of a removal or a publication that was killed.
    """
    refer = users()
    rows = []
    for directory in published():
        record, problem = _record(directory)
        name = name_of(directory)
        keys = ("model_id", "revision", "commit", "model_digest", "verified_at", "deep_verified_at")
        touched = model_record.touched_entries(directory, record)
        rows.append(
            {
                "name": name,
                "problem": problem,
                **{key: record.get(key) for key in keys},
                "files": len(record["files"]),
                "bytes": record.get("total_bytes"),
                "used_bytes": used_bytes(directory),
                "touched": [entry.path for entry in touched],
                "damaged": [row["path"] for row in record["files"] if row.get("damaged")],
                "extra": []
                if problem
                else model_record.strays_in(directory, model_record.recorded_entries(record)),
                "releases": refer.get(name, []),
                "engines": engines_running(name),
            }
        )
    left: Counter[str] = Counter()
    for place in (*(root() / ".incoming").glob("*/*"), *without_record()):
        if place.is_dir() and not place.is_symlink():
            left[name_of(place)] += used_bytes(place)
    unfinished = [{"name": name, "bytes": left[name]} for name in sorted(left)]
    return {"models": rows, "unfinished": unfinished, "free_bytes": free_bytes()}


def _record(directory: Path) -> tuple[dict[str, Any], str | None]:
    """A model's record, and why it cannot be read: one bad record must hide no other model."""
    try:
        return model_record.read_files(directory) or {"files": []}, None
    except HostError as error:
        return {"files": []}, f"{error.what}: {error.why}"


def without_record() -> list[Path]:
    """Models' directories that count for nothing."""
    return [
        place
        for place in root().glob("*/*")
        if not place.name.startswith(".")
        and not place.parent.name.startswith(".")
        and not os.path.lexists(model_record.record_path(place))
    ]


def free_bytes() -> int:
    found = os.statvfs(layout.llm_root())
    return found.f_bavail * found.f_frsize


def remove(request: dict[str, Any]) -> dict[str, Any]:
    """`model remove` {models: [OWNER--NAME/REVISION], dry} -> {removed: [name], freed_bytes}.

    HostError, and nothing is removed, when a release refers to one of them or it is not there. What
    an unfinished pull has left under that name goes too, and may be all there is. A kill in the
    middle leaves a directory without a record, which the same request removes.
    """
    fields.refuse_unknown(request, {"models", "dry"}, "model remove")
    names = fields.texts(request, "models")
    refer = users()
    for name in names:
        if name_problem(name) or name.count("/") != 1 or name.startswith("."):
            raise HostError(f"{name!r} is no model's name", "it is OWNER--NAME/REVISION.", "Fix it")
        if refer.get(name):
            raise HostError(
                f"{name} is not removed",
                f"release {', '.join(refer[name])} refers to it.",
                "Deploy other releases until this one is pruned (engine.keep_releases), then "
                "remove it.",
            )
        if not any(os.path.lexists(place) for place in places(name)):
            raise HostError(
                f"{name} is not on this host",
                "it has neither a directory nor a record.",
                "See `fleet model list`.",
            )
    if request.get("dry") is True:
        freed = sum(used_bytes(place) for name in names for place in places(name))
        return {"removed": names, "freed_bytes": freed}
    freed = 0
    for name in names:
        freed += _remove(name)
    return {"removed": names, "freed_bytes": freed}


def places(name: str) -> tuple[Path, Path, Path]:
    """The record, the model, and what a pull of it has gathered so far."""
    directory = root() / name
    return model_record.record_path(directory), directory, root() / ".incoming" / name


def _remove(name: str) -> int:
    """Its record first, so that it counts for nothing from the first moment on."""
    record_file, directory, gathered = places(name)
    record, _ = _record(directory)
    published_once = os.path.lexists(directory)
    with prune.idle(gathered) as nobody_pulls:
        if not nobody_pulls:
            raise locking.Busy(
                f"{name} is being pulled or verified",
                f"another process holds the lock beside {gathered}.",
                "Wait for it, or stop it ('job stop').",
            )
        freed = used_bytes(directory) + used_bytes(gathered)
        # First, so that a kill from here on leaves no model that is gone without a word.
        events.record("removing model", model=name, model_digest=record.get("model_digest"))
        durable.remove_file(record_file)
        prune.remove_as_owner(directory)
        prune.remove_as_owner(gathered)
    events.record(
        "model removed" if published_once else "unfinished pull removed",
        model=name,
        model_digest=record.get("model_digest"),
        commit=record.get("commit"),
        freed_bytes=freed,
    )
    return freed
