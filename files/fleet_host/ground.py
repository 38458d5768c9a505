"""From where an engine goes live: what serves, and so what to go back to, by what is on disk.

`current` alone is not believed: a hand may have pointed it elsewhere, or removed the release behind
it, and a release that is not there is none to go back to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import durable, engine

if TYPE_CHECKING:
    from .status import Progress

PENDING = ("draining", "proving", "switching", "starting", "judging", "reverting")


@dataclass(frozen=True)
class Ground:
    """From where: the release that served (None: none did) and the one before it."""

    serving: str | None
    previous: str | None
    interrupted: bool


def read_ground(name: str, progress: Progress) -> Ground:
    """Where a go-live starts from, past an earlier one that was interrupted. Each release in it is
    on disk in full, whatever the links say."""
    link = engine.home(name) / "current"
    serving: object = engine.linked(name, "current")
    previous: object = engine.linked(name, "previous")
    running = engine.read_started(name).get("release")
    shown = f"current points at {link.readlink()}" if link.is_symlink() else "there is no current"
    earlier = durable.read_json(engine.home(name) / "golive.json")
    interrupted = isinstance(earlier, dict) and earlier.get("phase") in PENDING
    if interrupted:
        serving, previous = earlier.get("from"), earlier.get("previous")
        progress.log(
            f"an earlier go-live to {earlier.get('to')} was interrupted while {earlier['phase']}; "
            f"before it {serving or 'nothing'} served"
        )
        shown = f"{serving} served"
        # What runs may be the release that was being tried.
        running = running if running != earlier.get("to") else None
    before = _there(name, previous)
    if previous and before is None:
        progress.log(f"previous names {previous}, which is not on this host in full: ignored")
    found = _there(name, serving)
    known = serving if interrupted else link.is_symlink() or running
    if found is None and known:
        found = _there(name, running) or before
        how = "which runs" if found == running else "the one before it"
        to = f"release {found}, {how}" if found else "nothing"
        progress.log(f"{shown}, which is no release on this host in full; to go back to: {to}")
        before = before if before != found else None
    return Ground(found, before, interrupted)


def _there(name: str, release: object) -> str | None:
    found = release if isinstance(release, str) else None
    return found if engine.on_disk(name, found) else None
