"""Asking the hub what a model is, and gathering its files until each of them is verified."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import client, durable, hub, integrity, staging
from .borrow import borrow
from .errors import HostError
from .listing import (
    CONFIG,
    INDEX,
    FileEntry,
    Listing,
    require_accepted,
    require_shards,
    require_weights,
    shards_of,
)
from .outage import Outage
from .pull_spec import COMMIT, Wanted
from .staging import Memory, Places
from .swarm import Yielded

if TYPE_CHECKING:
    from collections.abc import Callable

    from .status import Progress
    from .swarm import Swarm

# Kept free beside the model: the journal, the client's bookkeeping, and other people's files.
SPARE_BYTES = 1024**3
# Others can have a file once it is saved as good.
SHARED_INTERVAL_SECONDS = 0.5


def ask_hub(wanted: Wanted, progress: Progress) -> Listing:
    """The listing of the revision, refused unless complete and checkable, its shards included."""
    client.check_program(wanted.client.program)
    if wanted.locked is not None:
        # Checked when it was locked; whether the hub has these bytes shows when they arrive.
        require_accepted(wanted.locked, wanted.accept, wanted.name)
        return wanted.locked
    progress.phase("listing", message=f"{wanted.name} from {wanted.source.endpoint}")
    known = hub.revisions(wanted.source, wanted.model_id)
    # A commit is a revision too, but no hub lists all of them.
    if wanted.revision not in known and not COMMIT.fullmatch(wanted.revision):
        raise HostError(
            f"{wanted.model_id} has no revision {wanted.revision!r}",
            f"the hub lists {len(known)}: {', '.join(known[:20]) or 'none'}.",
            "Set model.revision to one of them.",
        )
    listing = hub.listing(wanted.source, wanted.model_id, wanted.revision)
    require_accepted(listing, wanted.accept, wanted.name)
    require_weights(listing, wanted.name, wanted.accept)
    for path in (CONFIG, INDEX):
        entry = listing.entry(path)
        if entry is not None:
            body = hub.small_file(wanted.source, wanted.model_id, wanted.revision, entry)
            if path == INDEX:
                require_shards(listing, shards_of(body, wanted.name), wanted.name)
    return listing


def gather(
    wanted: Wanted,
    place: Places,
    listing: Listing,
    needed: tuple[FileEntry, ...],
    progress: Progress,
    swarm: Swarm | None = None,
) -> list[integrity.Verdict]:
    """Bring the needed files into staging/model and verify each: a verdict for every one.

    A client that failed is run again until no byte came for model.stall_timeout_seconds: hours of
    download should not end with minutes of trouble at the hub. Not where that would not help
    (Outcome.final). Files that it called good and that are not are pulled once more. swarm: the
    inventory's other hosts, who are asked first, and who try the hub while this one waits.
    """
    interval = staging.SAVE_INTERVAL_SECONDS if swarm is None else SHARED_INTERVAL_SECONDS
    memory = Memory(place, staging.remembered(place, needed), interval)
    if swarm is not None:
        swarm.begin(memory, needed, progress)
    verify_new(place, needed, memory, progress)
    missing = [entry for entry in needed if entry.path not in memory.good]
    refuse_full_disk(wanted, place, missing)
    if borrow(place, missing, progress):
        verify_new(place, needed, memory, progress)
        missing = [entry for entry in needed if entry.path not in memory.good]
    outage, pulled_again = Outage(wanted.client.stall_timeout_seconds), False
    most = client.present_bytes(place.model, needed)
    while missing:
        turn = missing if swarm is None else swarm.gather(memory, progress, missing)
        if not turn:
            break
        try:
            outcome = download(
                wanted, place, listing, needed, turn, progress,
                None if swarm is None else swarm.while_at_hub(memory, progress, turn),
            )  # fmt: skip
        except Yielded:
            continue
        if swarm is not None:
            swarm.after_hub(memory)
        bad = verify_new(place, needed, memory, progress)
        missing = [entry for entry in needed if entry.path not in memory.good]
        if outcome.error is not None:
            if swarm is not None:
                swarm.add_to(outcome.error)
            # Of what came only what was kept counts, so that there is an end.
            have = client.present_bytes(place.model, needed)
            advanced, most = have > most, max(have, most)
            refused = outcome.refused and not advanced and not outcome.final
            if refused and swarm is not None and swarm.left_to_others(outcome.error, progress):
                continue
            if outcome.final or refused:
                raise outcome.error
            if advanced:
                outage.bytes_came(outcome.quiet_seconds)
            if not outcome.refused:
                woken = None if swarm is None else swarm.while_waiting(missing, outcome.error.why)
                outage.wait(outcome.error, progress, woken)
        elif bad and pulled_again:
            raise damaged_at_hub(wanted, listing, bad)
        else:
            pulled_again = bool(bad)
    return [memory.good[entry.path] for entry in needed]


def verify_new(
    place: Places, needed: tuple[FileEntry, ...], memory: Memory, progress: Progress
) -> list[integrity.Verdict]:
    """Verify what is there and not yet known to be good; remove and return what is wrong."""
    unknown = [
        entry
        for entry in needed
        if entry.path not in memory.good and os.path.lexists(place.model / entry.path)
    ]
    if not unknown:
        return []
    total = sum(entry.size_bytes for entry in unknown)
    progress.phase("verify", total=total, unit="bytes", message=f"SHA-256 of {len(unknown)} files")
    verdicts = integrity.verify_files(
        place.model, unknown, progress=progress, sync=True, on_verdict=memory.add
    )
    memory.save()
    bad = [verdict for verdict in verdicts if verdict.problem]
    for verdict in bad:
        progress.log(f"removed: {verdict.entry.path} {verdict.problem}")
        durable.remove_tree(place.model / verdict.entry.path)
    return bad


def refuse_full_disk(wanted: Wanted, place: Places, missing: list[FileEntry]) -> None:
    total = sum(entry.size_bytes for entry in missing)
    have = client.present_bytes(place.model, missing)
    free = staging.free_bytes(place.staging)
    if missing and total - have + SPARE_BYTES > free:
        raise HostError(
            f"{wanted.name} does not fit on the disk of {wanted.target}",
            f"{gigabytes(total - have)} are still to come and {gigabytes(SPARE_BYTES)} must stay "
            f"free, but {gigabytes(free)} are free: {gigabytes(total - have + SPARE_BYTES - free)} "
            "are lacking.",
            f"Free that much on that file system ('df -h {wanted.target}'), for example an old "
            "model that no release uses, then start again: what is here is kept.",
        )


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


@dataclass(frozen=True)
class Outcome:
    """One run of the client. error: None when it said that all is well and all files are there.
    final: running it again would not help. refused: nor would it, unless other files came in this
    one, or an address from which to fetch one has expired meanwhile. quiet_seconds: how long ago
    the last byte came."""

    error: HostError | None
    final: bool
    refused: bool = False
    quiet_seconds: float = 0.0


def download(
    wanted: Wanted,
    place: Places,
    listing: Listing,
    needed: tuple[FileEntry, ...],
    missing: list[FileEntry],
    progress: Progress,
    on_tick: Callable[[], None] | None = None,
) -> Outcome:
    """Run the client once for the missing files."""
    message = f"{len(missing)} of {len(needed)} files from {wanted.source.endpoint}"
    total = sum(entry.size_bytes for entry in needed)
    progress.phase("download", total=total, unit="bytes", message=message)
    everything = len(missing) == len(listing.entries) and wanted.locked is None
    ended = client.fetch(
        wanted.client,
        wanted.model_id,
        wanted.asked_revision,
        place.model,
        needed,
        # A hub may have more than is locked.
        None if everything else missing,
        progress,
        on_tick,
    )
    absent = _absent(place, missing)
    if ended.returncode == 0 and not ended.stalled and not absent:
        return Outcome(None, final=False)
    what, free = f"the download of {wanted.name}", staging.free_bytes(place.staging)
    error = client.failure(wanted.client, ended, what, absent, free)
    # Exit 0 with files absent is what the client does when they are not in the hub's listing now.
    final = ended.stalled or ended.returncode == 0 or client.out_of_space(ended, free)
    refused = client.refusal_in(ended.tail) is not None
    return Outcome(error, final, refused, ended.quiet_seconds)


def _absent(place: Places, entries: list[FileEntry]) -> list[str]:
    return [entry.path for entry in entries if not (place.model / entry.path).exists()]


def damaged_at_hub(wanted: Wanted, listing: Listing, bad: list[integrity.Verdict]) -> HostError:
    """Two downloads gave the same wrong files: whose fault, as far as it can be told."""
    lines = [f"{verdict.entry.path} {verdict.problem}" for verdict in bad]
    if wanted.locked is not None:
        return HostError(
            f"{wanted.name} from {wanted.source.endpoint} is not what was locked",
            f"{len(bad)} files were pulled twice and are others: {lines[0] if lines else ''}.",
            "The other files are kept. If the revision has moved on at the hub, lock it anew "
            "(fleet model lock INVENTORY shows what changed) or set model.revision to a commit; "
            "else the hub or a proxy on the way damages files.",
            lines,
        )
    now = hub.listing(wanted.source, wanted.model_id, wanted.revision)
    if now.entries != listing.entries:
        return HostError(
            f"{wanted.name} changed at the hub while it was pulled",
            f"{len(bad)} files are not those that were listed at the start.",
            "Start again: the pull then follows the new listing and keeps the files that still "
            "count. To be safe from that, set model.revision to a tag.",
            lines,
        )
    return HostError(
        f"{wanted.name} is damaged at the hub or on the way",
        f"{len(bad)} files were pulled twice and are wrong: {lines[0] if lines else ''}.",
        "The other files are kept. Report it to whoever runs the hub, or pull from another "
        "endpoint; a proxy that caches broken files does this too.",
        lines,
    )
