"""A model that is published already: present, verified anew, or mended file by file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from . import durable, integrity, staging
from .errors import HostError
from .gather import ask_hub, gather
from .integrity import Verdict
from .listing import Listing

if TYPE_CHECKING:
    from .pull_spec import Wanted
    from .staging import Places
    from .status import Progress


def look_after(wanted: Wanted, place: Places, progress: Progress) -> str:
    """A model that is published: present, verified now, or mended file by file."""
    record = integrity.read_record(place.final)
    if record is not None:
        listing = Listing(integrity.recorded_entries(record), record.get("commit"))
        touched = integrity.touched_entries(place.final, record)
        strays = integrity.extra_files(place.final, listing.entries)
        if not touched and not strays:
            return "present"
        origin = {key: record.get(key) for key in wanted.origin(None)}
    else:
        # A crash between the rename and the record. What the files must be is in the staged lock;
        # without that, the hub says it.
        listing = staging.read_lock(place) or ask_hub(wanted, progress)
        touched = list(listing.entries)
        strays = integrity.extra_files(place.final, listing.entries)
        origin = wanted.origin(listing.commit)
    total = sum(entry.size_bytes for entry in touched)
    message = f"{len(touched)} files of {place.final} were touched since they were verified"
    progress.phase("verify", total=total, unit="bytes", message=message)
    verdicts = integrity.verify_files(place.final, touched, progress=progress, sync=True)
    damaged = [verdict for verdict in verdicts if verdict.problem]
    if strays:
        make_writable(place.final)
        # Somebody put them there and may miss them: kept, unlike the leftovers of a pull.
        aside = place.staging.with_name(place.staging.name + "-aside")
        names = staging.move_aside(aside, place.final, strays)
        progress.log(f"{len(names)} files that do not belong moved to {aside}, {names[0]} first")
    if damaged:
        mend(wanted, place, listing, damaged, progress)
    staging.make_read_only(place.final)
    durable.fsync_tree(place.final)
    place.final.chmod(0o555)
    # Untouched files keep their old verdict: their stat is still as recorded.
    final = [
        Verdict(entry, None, integrity.stat_of(place.final / entry.path))
        for entry in listing.entries
    ]
    integrity.write_record(place.final, final, origin)
    return "mended" if damaged else "verified"


def make_writable(directory: Path) -> None:
    for root, _, _ in os.walk(directory):
        Path(root).chmod(0o755)


def mend(
    wanted: Wanted, place: Places, listing: Listing, damaged: list[Verdict], progress: Progress
) -> None:
    """Pull the damaged files of a published model again and put each in place by a rename.

    The directory never goes away and no good file is touched, so releases may go on using it; a
    process that has a damaged file open keeps that one until it restarts.
    """
    lines = [f"{verdict.entry.path} {verdict.problem}" for verdict in damaged]
    for line in lines:
        progress.log(f"damaged: {line}")
    try:
        replace_files(wanted, place, listing, damaged, progress)
    except HostError as error:
        raise HostError(
            f"{place.final} is damaged and could not be mended",
            f"{len(damaged)} files are wrong ({lines[0]}), and pulling them again failed: {error}",
            "Mend the cause and pull again, or copy these files from another host that has the "
            "model. A running engine has them loaded; a restart would read the damaged ones.",
            lines + error.detail,
        ) from error


def replace_files(
    wanted: Wanted, place: Places, listing: Listing, damaged: list[Verdict], progress: Progress
) -> None:
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
    gather(wanted, place, listing, needed, progress)
    make_writable(place.final)
    for entry in needed:
        goal = place.final / entry.path
        if goal.is_dir() and not goal.is_symlink():
            durable.remove_tree(goal)
        durable.make_directories(goal.parent)
        (place.model / entry.path).replace(goal)
        durable.fsync_directory(goal.parent)
