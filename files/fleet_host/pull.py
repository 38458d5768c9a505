"""The pull job: a model of a ModelScope hub, verified, published whole or not at all.

Listing, lock, space, download, verification, publication, record: each step leaves the disk so that
the next run of the job goes on from there, whichever instruction a power cut hits.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import durable, integrity, model_record, staging
from .errors import HostError
from .gather import ask_hub, gather
from .mend import look_after
from .pull_spec import Wanted, read_spec
from .swarm import Swarm

if TYPE_CHECKING:
    from pathlib import Path

    from .staging import Places
    from .status import Progress


def run(spec: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{state: pulled|verified|mended|present, path, record, model_digest, files, bytes}, and with
    fan_out also peers: what came from whom (swarm.as_result)."""
    wanted, place = read_spec(spec)
    check_target(wanted.target)
    with staging.held(place, progress):
        swarm = Swarm(wanted, place) if wanted.fan_out else None
        try:
            if place.final.is_dir():
                state = look_after(wanted, place, progress, swarm)
            else:
                pull(wanted, place, progress, swarm)
                state = "pulled"
        except HostError as error:
            if swarm is not None:
                swarm.failed(str(error))
            raise
        finally:
            if swarm is not None:
                swarm.close()
        # After the record: until then the staged lock may be needed to tell what the files must be.
        durable.remove_tree(place.staging)
    record = model_record.read_record(place.final)
    if record is None:
        raise HostError(f"{place.record} vanished", "somebody removed it.", "Pull again.")
    return {
        **({} if swarm is None else {"peers": swarm.as_result()}),
        "state": state,
        "path": str(place.final),
        "record": str(place.record),
        "model_digest": record["model_digest"],
        "files": len(record["files"]),
        "bytes": record["total_bytes"],
    }


def check_target(target: Path) -> None:
    if not target.is_dir() or not os.access(target, os.W_OK):
        raise HostError(
            f"models cannot be put into {target}",
            "the directory does not exist." if not target.is_dir() else "it is not writable here.",
            "Run the deploy, which makes it for the user llm-build; check that its file system is "
            "mounted, and not read-only after an error (see 'dmesg').",
        )


def pull(wanted: Wanted, place: Places, progress: Progress, swarm: Swarm | None = None) -> None:
    """A model that is not here yet."""
    listing = ask_hub(wanted, progress)
    staging.write_lock(place, wanted.origin(listing.commit), listing)
    place.model.mkdir(exist_ok=True)
    strays = staging.move_strays(place, listing, keep_partial=True)
    if strays:
        progress.log(f"{len(strays)} stale files moved aside, {strays[0]} first")
    verdicts = gather(wanted, place, listing, listing.entries, progress, swarm)
    if swarm is not None:
        swarm.publishing()
    integrity.require_index(place.model, listing.entries, wanted.name)
    progress.phase("publish", message=str(place.final))
    staging.move_strays(place, listing, keep_partial=False)
    verdicts = staging.sealed(place.model, verdicts)
    # Their ctimes are new; a kill from here on must not cost hashing it all again.
    staging.Memory(place, {verdict.entry.path: verdict for verdict in verdicts}).save()
    durable.publish_directory(place.model, place.final)
    place.final.chmod(0o555)
    model_record.write_record(place.final, verdicts, wanted.origin(listing.commit))
