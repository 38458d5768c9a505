"""What this host has of a model to give to others, and what its pull is about to do.

Given is what was verified and not touched since: of a published model by its record, of one that is
being pulled file by file by staging's verified.json. The pull itself writes fan-out.json into its
unit's directory below /run every second or so:
  {at, coming: [sha256], bytes, hashed, hub, hub_failed, ended}
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import durable, jobs, layout, model_record
from .errors import HostError
from .integrity import Stat, stat_of

if TYPE_CHECKING:
    from pathlib import Path

# A pull writes its state every second; one that has not for so long was killed.
FRESH_SECONDS = 20.0
# Between a run's opening this host and its pull's first word lie the start of a unit and of Python.
START_SECONDS = 45.0


@dataclass(frozen=True)
class Given:
    """A file that may be served: where it is, and the stat with which it was verified."""

    path: Path
    stat: Stat


def model_directory(model: str) -> Path:
    return layout.llm_root() / "models" / model


def staging_directory(model: str) -> Path:
    return layout.llm_root() / "models" / ".incoming" / model


def state_path(model: str) -> Path:
    """The pull's job is called after its model."""
    return jobs.status_path("pull", model.replace("/", "--")).with_name("fan-out.json")


def given(model: str) -> dict[str, Given]:
    """SHA-256 -> the verified file that has it."""
    found: dict[str, Given] = {}
    staged = durable.read_object(staging_directory(model) / "verified.json") or {}
    _add(found, staging_directory(model) / "model", list(staged.values()))
    try:
        record = model_record.read_files(model_directory(model))
    except HostError:
        record = None  # a verification tells; here it only gives nothing
    _add(found, model_directory(model), (record or {}).get("files", []))
    return found


def _add(found: dict[str, Given], directory: Path, rows: list[Any]) -> None:
    for row in rows:
        if not isinstance(row, dict) or row.get("damaged"):
            continue
        path, stat = directory / str(row.get("path")), model_record.stat_in(row)
        if stat.same(stat_of(path)):
            found[str(row["sha256"])] = Given(path, stat)


def is_published(model: str) -> bool:
    """Whether there is a published model of which something can be given."""
    try:
        record = model_record.read_record(model_directory(model))
    except HostError:
        return False
    return record is not None and model_directory(model).is_dir()


def write(model: str, state: dict[str, Any]) -> bool:
    """Not durable: after a power cut there is no pull that it would tell of. False where there is
    no such directory, since the pull runs as no job: others then do not wait for it."""
    path = state_path(model)
    if not path.parent.is_dir():
        return False
    temporary = path.with_name(".fan-out.json.new")
    temporary.write_text(json.dumps({"at": time.monotonic(), **state}))
    temporary.replace(path)
    return True


def read(model: str, *, opened_at: float, expected: bool) -> dict[str, Any]:
    """{pulling, starting, coming, bytes, hashed, hub, hub_failed}.

    expected: the run that opened this host at opened_at is about to start its pull, which counts as
    pulling until it has had the time to; starting: it has not said yet what it has."""
    document = durable.read_object(state_path(model)) or {}
    now, at = time.monotonic(), document.get("at")
    if not isinstance(at, float):
        document, at = {}, -1.0
    if document and not document.get("ended") and now - at <= FRESH_SECONDS:
        coming = document.get("coming")
        return {
            "pulling": True,
            "starting": False,
            "coming": coming if isinstance(coming, list) else [],
            "bytes": document.get("bytes") or 0,
            "hashed": document.get("hashed") or 0,
            "hub": document.get("hub") is True,
            "hub_failed": document.get("hub_failed"),
        }
    told = at >= opened_at  # by a pull of this run, which has ended or was killed
    starting = expected and not told and now - opened_at < START_SECONDS
    starting = starting and not is_published(model)
    return {
        "pulling": starting,
        "starting": starting,
        "coming": [],
        "bytes": document.get("bytes") or 0,
        "hashed": 0,
        "hub": False,
        "hub_failed": document.get("hub_failed") if told else None,
    }
