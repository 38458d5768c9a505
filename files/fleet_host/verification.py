"""The verify job: published models against their records; what differs is hashed, deep everything.

It never changes a model's directory: an engine may be running from it. What it finds goes into the
record (a damaged file is marked there), so that the next deploy plans a pull, which replaces just
these files, each by a rename, and restarts an engine that may have loaded them (mend.py).
"""

from __future__ import annotations

import calendar
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import durable, fields, integrity, layout, locking, model_record, models
from .errors import HostError, SpecError
from .listing import name_problem
from .staging import pulls_lock
from .status import Progress

if TYPE_CHECKING:
    from .integrity import Verdict

KEYS = {"models", "deep", "scheduled"}
SCHEDULE = "llm/verify.json"
SHOWN_LINES = 50


@dataclass(frozen=True)
class Found:
    """What is wrong with one model. name: OWNER--NAME/REVISION. checked: files that were hashed.
    damaged: (path, problem). broken: the same, of files that are as locked and do not belong
    together. error: why it could not be verified."""

    name: str
    record: dict[str, Any]
    checked: list[str]
    damaged: list[tuple[str, str]]
    extra: list[str]
    broken: list[tuple[str, str]]
    error: HostError | None = None

    @property
    def lines(self) -> list[str]:
        if self.error is not None:
            return [f"{self.name}: {self.error.what}: {self.error.why}"]
        return [
            f"{self.name}: {path} {problem}" for path, problem in self.damaged + self.broken
        ] + [f"{self.name}: {path} does not belong to the model" for path in self.extra]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "model_digest": self.record.get("model_digest"),
            "commit": self.record.get("commit"),
            "files": len(self.record["files"]),
            "bytes": self.record.get("total_bytes"),
            "hashed": len(self.checked),
            "damaged": [{"path": path, "problem": problem} for path, problem in self.damaged],
            "extra": self.extra,
            "broken": [{"path": path, "problem": problem} for path, problem in self.broken],
            "engines": models.engines_running(self.name),
        }


class GaveWay(Exception):
    """A pull wants the model: a deploy must not wait for hours, or fail, for a verification."""


def run(spec: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{models: [as_dict()], skipped: [name], deep, seconds}. HostError when one is not as recorded.

    models: names, null for all. scheduled: deep only for those whose last deep verification is
    older than the settings ask for; of the others the stats are compared.
    """
    fields.refuse_unknown(spec, KEYS, "verify")
    scheduled = spec.get("scheduled") is True
    days = scheduled_days() if scheduled else None
    began = time.monotonic()
    answers, skipped = [], []
    for directory in wanted_models(spec):
        try:
            deep = spec.get("deep") is True or (days is not None and is_due(directory, days))
            found = verify_held(directory, deep=deep, progress=progress)
        except HostError as error:
            # Of this model: the others are verified all the same.
            problem = f"cannot be relied on: {error.what}: {error.why}"
            broken = [(f"{directory.name}.json", problem)]
            name = models.name_of(directory)
            found = Found(name, {"files": []}, [], [], [], broken, error)
        if found is None:
            skipped.append(models.name_of(directory))
        else:
            answers.append(found)
    result = {
        "models": [found.as_dict() for found in answers],
        "skipped": skipped,
        "deep": spec.get("deep") is True,
        "seconds": round(time.monotonic() - began, 3),
    }
    wrong = [found for found in answers if found.lines]
    if wrong:
        raise damage(wrong, result)
    return result


def damage(wrong: list[Found], result: dict[str, Any]) -> HostError:
    """What is wrong, with what `run` would have returned as its result."""
    names = ", ".join(found.name for found in wrong)
    lines = [line for found in wrong for line in found.lines]
    damaged = sum(len(found.damaged) for found in wrong)
    extra = sum(len(found.extra) for found in wrong)
    engines = sorted({one for it in wrong if it.damaged for one in models.engines_running(it.name)})
    errors = [found.error for found in wrong if found.error is not None]
    fixes = [
        "Run the deploy: its pull replaces the damaged files alone and moves away what does not "
        "belong."
    ] * bool(damaged or extra)
    fixes += list(dict.fromkeys(error.fix for error in errors))
    fix = " ".join(fixes) or (
        "Every file is as it was pulled, so it is broken at its source: use another revision."
    )
    if engines:
        fix += (
            f" Engine {', '.join(engines)} has it and is left alone until then, though it may have "
            "loaded what is damaged; the deploy drains and restarts it."
        )
    error = HostError(
        f"{names} is not as it was verified",
        f"{damaged} files are damaged and {extra} do not belong"
        + (f", and {len(errors)} models could not be verified" if errors else "")
        + f": {lines[0].rstrip('.')}.",
        fix,
        lines[:SHOWN_LINES],
    )
    error.result = result
    return error


def wanted_models(spec: dict[str, Any]) -> list[Path]:
    """Directories of the models that are asked for. SpecError for what is no name."""
    names = spec.get("models")
    if names is None:
        return models.published()
    root = layout.llm_root() / "models"
    for name in names if isinstance(names, list) else [names]:
        if not isinstance(name, str) or name_problem(name) or name.count("/") != 1:
            raise SpecError(f"{name!r} is no model's name", "it is OWNER--NAME/REVISION.", "Fix it")
    return [root / name for name in names]


def verify_held(directory: Path, *, deep: bool, progress: Progress) -> Found | None:
    """verify_model while no pull writes into it; None when one does, or comes to want it."""
    staging = directory.parents[1] / ".incoming" / directory.parent.name
    durable.make_directories(staging)
    lock = staging / f".{directory.name}.lock"
    try:
        with locking.held(lock, "the model is being pulled", "Wait for it."):
            pulls = pulls_lock(staging / directory.name)
            return verify_model(directory, deep=deep, progress=progress, pulls=pulls)
    except GaveWay:
        progress.log(f"{models.name_of(directory)} is left to a pull, and verified another time")
        return None
    except locking.Busy:
        progress.log(f"{models.name_of(directory)} is left out: it is being pulled")
        return None


def verify_model(
    directory: Path,
    *,
    deep: bool,
    progress: Progress,
    renewing: bool = True,
    pulls: Path | None = None,
) -> Found:
    """One published model, and its record renewed. deep: each file is read from the disk. pulls:
    the lock whose holder it gives way to (GaveWay), with what it has found in the record."""
    record = model_record.require_record(directory)
    entries = model_record.recorded_entries(record)
    todo = list(entries) if deep else model_record.touched_entries(directory, record)
    name = models.name_of(directory)
    verdicts: list[Verdict] = []
    if todo:
        total = sum(entry.size_bytes for entry in todo)
        message = f"{len(todo)} of {len(entries)} files of {name}"
        progress.phase("verify", total=total, unit="bytes", message=message)

        def tick() -> None:
            if pulls is not None and locking.is_held(pulls):
                raise GaveWay

        try:
            # A marked file may be right in the page cache and wrong on the disk.
            integrity.verify_files(
                directory, todo, progress=progress, from_disk=True,
                on_verdict=verdicts.append, on_tick=tick,
            )  # fmt: skip
        except GaveWay:
            model_record.renew(directory, record, verdicts, deep=False)
            raise
        if renewing:
            model_record.renew(directory, record, verdicts, deep=deep)
    damaged = [(it.entry.path, it.problem) for it in verdicts if it.problem]
    broken = integrity.index_problems(directory, entries) if deep and not damaged else []
    extra = model_record.strays_in(directory, entries)
    checked = [entry.path for entry in todo]
    return Found(name, record, checked, damaged, extra, broken)


# --- the timer


def scheduled_days() -> int | None:
    """How old a deep verification may become; None: never again."""
    document = durable.read_json(layout.etc_root() / SCHEDULE)
    days = document.get("every_days") if isinstance(document, dict) else None
    return days if isinstance(days, int) and days > 0 else None


def is_due(directory: Path, days: int) -> bool:
    """Whether every byte was last read longer ago than that. A record without a date is due."""
    record = model_record.read_record(directory) or {}
    try:
        then = time.strptime(str(record.get("deep_verified_at")), "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return True
    return time.time() - calendar.timegm(then) >= days * 86400


# --- at once, without a job


def verify_command(request: dict[str, Any]) -> dict[str, Any]:
    """`fleet-host model verify` {path, deep: false} -> as Found.as_dict, and seconds.

    HostError that names the files when not all is well, so that no caller overlooks it.
    """
    path, deep = request.get("path"), request.get("deep", False)
    if (
        not isinstance(path, str)
        or not path.startswith("/")
        or not isinstance(deep, bool)
        or name_problem(path.lstrip("/"))
    ):
        raise SpecError(
            "'model verify' cannot read its request",
            f"path is {path!r}, deep is {deep!r}.",
            'Give {"path": "/srv/llm/models/OWNER--NAME/REVISION", "deep": true or false}.',
        )
    began = time.monotonic()
    # Run by root, beside whatever pulls: the record stays as it is.
    found = verify_model(Path(path), deep=deep, progress=Progress(None), renewing=False)
    if found.lines:
        raise damage([found], found.as_dict())
    return {**found.as_dict(), "ok": True, "seconds": round(time.monotonic() - began, 3)}
