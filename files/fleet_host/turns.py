"""Whose turn it is at the hub, from what the peers say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from .listing import FileEntry
    from .peer_watch import Seen

# Of hosts that failed at the hub: after two it is the hub's fault, and waiting for a third is
# worth nothing.
FAILED_AT_HUB = 2


def of(
    missing: Iterable[FileEntry],
    alive: Iterable[Seen],
    rank: int,
    broken: Collection[str],
    *,
    hub_works: bool,
) -> list[FileEntry]:
    """What the host of this rank is to bring from the hub; empty: others bring it, or verify it.
    broken: paths that peers have and give wrong."""
    alive = list(alive)
    # What somebody has is not the hub's business, also while he is too busy to give it.
    theirs = {sha256 for seen in alive for sha256 in seen.files | seen.coming}
    # One that has not begun may have the very files, not verified yet. One to whom the hub gives
    # nothing does not hold the others back.
    ahead = any(
        seen.starting or (seen.pulling and seen.peer.rank < rank and not seen.hub_failed)
        for seen in alive
    )
    if ahead and hub_works:
        return []
    return [entry for entry in missing if entry.sha256 not in theirs or entry.path in broken]


def hub_works(everybody: Iterable[Seen]) -> bool:
    return sum(1 for seen in everybody if seen.hub_failed) < FAILED_AT_HUB


def somebody_pulls(alive: Iterable[Seen]) -> bool:
    """And is not known to get nothing from the hub."""
    return any(seen.pulling and not seen.hub_failed for seen in alive)
