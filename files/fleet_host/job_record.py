"""What a job of the build user's did, put into the host's event log by the job's unit.

`job record KIND ID` is the unit's ExecStopPost= with full privileges: only root writes the log, and
systemd runs it however the job ended. The result is the build user's file, so it is read as a
stranger's: no link is followed, nothing large is read, and only known keys are taken.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

from . import events, jobs, layout, model_record
from .errors import HostError

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_RESULT_BYTES = 4 << 20
SHOWN_FILES = 20
PULLED = {"pulled": "model published", "verified": "model verified", "mended": "model mended"}


def record(request: dict[str, Any]) -> dict[str, Any]:
    """`job record` KIND ID -> {events: how many were written}. Only for kinds pull and verify."""
    kind, identifier = jobs.named_job(request)
    stored = jobs.stored_or_scheduled(kind, identifier)
    if stored is None:
        return {"events": 0}
    who = str(stored.get("who") or "unknown")
    result = read_result(jobs.result_path(kind, identifier))
    if result.get("invocation_id") != os.environ.get("INVOCATION_ID", ""):
        # Killed, or it could not start: SERVICE_RESULT is systemd's word for how (systemd.exec(5)).
        how = os.environ.get("SERVICE_RESULT", "")
        return _write([(f"{kind} ended without a result", {"job": identifier, "how": how})], who)
    found = of_pull(stored, result) if kind == "pull" else of_verify(result)
    if not found and result.get("state") != "done":
        error = result.get("error")
        what = str(error.get("what"))[:300] if isinstance(error, dict) else ""
        found = [(f"{kind} failed", {"job": identifier, "why": what})]
    return _write(found, who)


def _write(found: list[tuple[str, dict[str, Any]]], who: str) -> dict[str, Any]:
    for what, details in found:
        events.record(what, who, **details)
    return {"events": len(found)}


def read_result(path: Path) -> dict[str, Any]:
    """The job's result; empty when there is none, or none that can be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > LARGEST_RESULT_BYTES:
            return {}
        document = json.loads(os.read(descriptor, LARGEST_RESULT_BYTES))
    except (ValueError, RecursionError):
        return {}
    finally:
        os.close(descriptor)
    return document if isinstance(document, dict) else {}


def of_pull(stored: dict[str, Any], result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What a pull that succeeded did; of one that found all present only what the log lacks.

    locked: whether it was pulled by a lock, whose digest is then model_digest.
    """
    answer = result.get("result")
    if result.get("state") != "done" or not isinstance(answer, dict):
        return []
    spec = stored["spec"]
    directory = spec.get("directory") or spec.get("revision") or "master"
    name = f"{str(spec.get('model_id')).replace('/', '--')}/{directory}"
    digest = _text(answer.get("model_digest"))
    what = PULLED.get(str(answer.get("state")))
    if what is None:
        # Published by a run that a power cut kept from saying so, or before there was a log of it.
        if in_log("model published", name, digest):
            return []
        what = "model published"
    details = {
        "model": name,
        "model_digest": digest,
        "commit": _commit(name),
        "hub": _text(spec.get("hub")),
        "endpoint": _text(spec.get("endpoint")),
        "locked": spec.get("files") is not None,
        **_provenance(spec.get("provenance")),
        "files": _whole(answer.get("files")),
        "bytes": _whole(answer.get("bytes")),
        **_of_peers(answer.get("peers")),
    }
    return [(what, {key: value for key, value in details.items() if value is not None})]


def _of_peers(told: object) -> dict[str, Any]:
    """Which hosts gave files, and which gave wrong ones or broke off."""
    if not isinstance(told, dict):
        return {}
    found = {}
    for key, name in (("from", "from_hosts"), ("dropped", "dropped_hosts")):
        names = told.get(key)
        if isinstance(names, dict) and names:
            found[name] = sorted(str(one)[:200] for one in names)[:SHOWN_FILES]
    return found


def _provenance(told: object) -> dict[str, Any]:
    """Which lock it was, by path and SHA-256, its licence, and what runs code and was accepted."""
    told = told if isinstance(told, dict) else {}
    accepted = told.get("accepted")
    return {
        **{key: _text(told.get(key)) for key in ("lock", "lock_sha256", "license")},
        "accepted": [_text(one) for one in accepted] if isinstance(accepted, list) else None,
    }


def published_after_all(directory: Path) -> None:
    """Write the event of a model that is published and of which the log says nothing: a power cut
    between its record and ExecStopPost=, which no later pull would make good."""
    record = model_record.read_record(directory)
    if record is None:
        return
    name, digest = f"{directory.parent.name}/{directory.name}", _text(record.get("model_digest"))
    if in_log("model published", name, digest):
        return
    details = {
        "model": name,
        "model_digest": digest,
        "commit": _text(record.get("commit")),
        "hub": _text(record.get("hub")),
        "endpoint": _text(record.get("endpoint")),
        "verified_at": _text(record.get("verified_at")),
        "from": "its record: the log lacked it",
    }
    events.record("model published", **{k: v for k, v in details.items() if v is not None})


def of_verify(result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Models that were hashed, and those that are damaged. Comparing stats is not worth a line."""
    answer = result.get("result")
    rows = answer.get("models") if isinstance(answer, dict) else None
    found = []
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict):
            continue
        details: dict[str, Any] = {
            "model": _text(row.get("name")),
            "model_digest": _text(row.get("model_digest")),
            "hashed": _whole(row.get("hashed")),
        }
        damaged = _paths(row.get("damaged"))
        extra = row.get("extra")
        extra = [str(one)[:200] for one in extra] if isinstance(extra, list) else []
        if damaged or extra:
            details |= {"damaged": damaged, "extra": extra[:SHOWN_FILES]}
            found.append(("model damaged", details))
        elif details["hashed"]:
            found.append(("model verified", details))
    return found


def in_log(what: str, model: str, digest: str | None) -> bool:
    """Whether the log has such an event of this content."""
    path = events.events_path()
    if not path.exists():
        return False
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if f'"{what}"' in line and model in line:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # `events verify` tells
                if (event.get("model"), event.get("model_digest")) == (model, digest):
                    return True
    return False


def _commit(name: str) -> str | None:
    try:
        found = model_record.read_record(layout.llm_root() / "models" / name)
    except HostError:
        return None
    return _text((found or {}).get("commit"))


def _paths(rows: object) -> list[str]:
    found = rows if isinstance(rows, list) else []
    return [str(row.get("path"))[:200] for row in found[:SHOWN_FILES] if isinstance(row, dict)]


def _text(value: object) -> str | None:
    return value[:300] if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
