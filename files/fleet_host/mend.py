"""A model that is published already: present, verified anew, or mended file by file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import durable, integrity, model_record, staging
from .errors import HostError
from .gather import ask_hub, gather
from .integrity import Verdict
from .listing import Listing, model_digest

if TYPE_CHECKING:
    from .listing import FileEntry
    from .pull_spec import Wanted
    from .staging import Places
    from .status import Progress
    from .swarm import Swarm


def look_after(
    wanted: Wanted, place: Places, progress: Progress, swarm: Swarm | None = None
) -> str:
    """A model that is published: present, verified now, or mended file by file."""
    record = model_record.read_files(place.final)
    if record is not None:
        refuse_other_than_locked(wanted, place, record)
        listing = Listing(model_record.recorded_entries(record), record.get("commit"))
        touched = model_record.touched_entries(place.final, record)
        strays = integrity.extra_files(place.final, listing.entries)
        if not touched and not strays:
            staging.close_directories(place.final)
            return "present"
        known: dict[str, Verdict] = {}
        origin = {key: record.get(key) for key in wanted.origin(None)}
    else:
        # A crash between the rename and the record. What the files must be is in the staged lock;
        # without that, the hub says it.
        listing = staging.read_lock(place) or ask_hub(wanted, progress)
        known = staging.remembered(place, listing.entries, place.final)
        touched = [entry for entry in listing.entries if entry.path not in known]
        strays = integrity.extra_files(place.final, listing.entries)
        origin = wanted.origin(listing.commit)
    verdicts = verify_again(place, record, touched, progress)
    damaged = [verdict for verdict in verdicts if verdict.problem]
    if strays:
        make_writable(place.final)
        # Somebody put them there and may miss them: kept, unlike the leftovers of a pull.
        aside = place.staging.with_name(place.staging.name + "-aside")
        names = staging.move_aside(aside, place.final, strays)
        progress.log(f"{len(names)} files that do not belong moved to {aside}, {names[0]} first")
    good = untouched(record, touched) + list(known.values())
    good += [verdict for verdict in verdicts if not verdict.problem]
    renewed = []
    if damaged:
        if record is not None:
            # Before the first file is replaced, so that a kill here hides it from no engine.
            stamp = mended_now(record, damaged)
            durable.write_json(place.record, {**record, "mended": stamp})
        renewed = mend(wanted, place, listing, damaged, progress, swarm)
    if record is None:
        integrity.require_index(place.final, listing.entries, wanted.name)
    final = staging.sealed(place.final, good)
    final += staging.sealed(place.final, renewed, renamed=True)
    durable.fsync_tree(place.final)
    place.final.chmod(0o555)
    model_record.write_record(
        place.final,
        final,
        origin,
        mended=mended_now(record, damaged),
        deep_verified_at=record.get("deep_verified_at") if record else None,
    )
    return "mended" if damaged else "verified"


def verify_again(
    place: Places, record: dict[str, Any] | None, touched: list[FileEntry], progress: Progress
) -> list[Verdict]:
    """Files that a verification found damaged are read from the disk: the page cache may be right
    where the disk is wrong."""
    total = sum(entry.size_bytes for entry in touched)
    message = f"{len(touched)} files of {place.final} are not as they were verified"
    progress.phase("verify", total=total, unit="bytes", message=message)
    marked = any(row.get("damaged") for row in record["files"]) if record else False
    return integrity.verify_files(
        place.final, touched, progress=progress, sync=True, from_disk=marked
    )


def untouched(record: dict[str, Any] | None, touched: list[FileEntry]) -> list[Verdict]:
    """They keep their old verdict: their stat is still as recorded."""
    again = {entry.path for entry in touched}
    return [
        Verdict(model_record.entry_in(row), None, model_record.stat_in(row))
        for row in (record["files"] if record else [])
        if row["path"] not in again
    ]


def mended_now(record: dict[str, Any] | None, damaged: list[Verdict]) -> dict[str, Any] | None:
    """For the record: an engine that was started before may have loaded what was wrong, and its
    next go-live restarts it (golive.runs_as_wished)."""
    if not damaged:
        return record.get("mended") if record else None
    files = [verdict.entry.path for verdict in damaged]
    return {"when": f"{model_record.utc_now()} {secrets.token_hex(4)}", "files": files}


def refuse_other_than_locked(wanted: Wanted, place: Places, record: dict[str, Any]) -> None:
    """A locked model's directory carries its digest in its name, so this is nobody's usual day."""
    if wanted.locked is None:
        return
    locked = model_digest(wanted.locked.entries)
    if record.get("model_digest") != locked:
        raise HostError(
            f"{place.final} holds another model than the lock says",
            f"its record has digest {record.get('model_digest')}, the lock {locked}.",
            "Somebody put it there by hand. If no release refers to it ('fleet model list'), "
            "remove it ('fleet model remove') and deploy again.",
        )


def make_writable(directory: Path) -> None:
    for root, _, _ in os.walk(directory):
        Path(root).chmod(0o755)


def mend(
    wanted: Wanted,
    place: Places,
    listing: Listing,
    damaged: list[Verdict],
    progress: Progress,
    swarm: Swarm | None,
) -> list[Verdict]:
    """Pull the damaged files of a published model again and put each in place by a rename.

    The directory never goes away and no good file is touched, so releases may go on using it; a
    process that has a damaged file open or mapped keeps that one until it restarts.
    """
    lines = [f"{verdict.entry.path} {verdict.problem}" for verdict in damaged]
    for line in lines:
        progress.log(f"damaged: {line}")
    try:
        return replace_files(wanted, place, listing, damaged, progress, swarm)
    except HostError as error:
        raise HostError(
            f"{place.final} is damaged and could not be mended",
            f"{len(damaged)} files are wrong ({lines[0]}), and pulling them again failed: {error}",
            "Mend the cause and pull again, or copy these files from another host that has the "
            "model. A running engine has them loaded; a restart would read the damaged ones.",
            lines + error.detail,
        ) from error


def replace_files(
    wanted: Wanted,
    place: Places,
    listing: Listing,
    damaged: list[Verdict],
    progress: Progress,
    swarm: Swarm | None,
) -> list[Verdict]:
    needed = tuple(verdict.entry for verdict in damaged)
    now = ask_hub(wanted, progress)
    gone = [entry.path for entry in needed if now.entry(entry.path) != entry]
    if gone:
        raise HostError(
            f"{wanted.source.endpoint} no longer has these files",
            f"{gone[0]} is another one now at {wanted.revision}, or gone.",
            "Move to a newer revision.",
            gone,
        )
    # The old listing stays the lock: the other files are measured by it after a crash here.
    staging.write_lock(place, wanted.origin(listing.commit), listing)
    durable.make_directories(place.model)
    gathered = gather(wanted, place, listing, needed, progress, swarm)
    make_writable(place.final)
    for entry in needed:
        goal = place.final / entry.path
        if goal.is_dir() and not goal.is_symlink():
            durable.remove_tree(goal)
        durable.make_directories(goal.parent)
        (place.model / entry.path).replace(goal)
        durable.fsync_directory(goal.parent)
    return gathered
