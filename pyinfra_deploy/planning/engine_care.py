"""The units beside an engine: its watch and its log file. What has to be written, started, stopped.

Their unit files are on every engine host; whether an instance runs is a setting's matter.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.host_care import Care, started_with
from pyinfra_deploy.planning.wanted import ManagedFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.settings.schema import Settings

WATCH, LOG = "llm-watch", "llm-log"
KINDS = (WATCH, LOG)
# Also what no setting switches: the proof is started by a go-live.
UNIT_FILES = ("llm-proof@.service", *(f"{kind}@.service" for kind in KINDS))


def instance(kind: str, engine: str) -> str:
    return f"{kind}@{engine}.service"


def units_to_read(engine: str) -> list[str]:
    """Units whose state the plan looks at in the snapshot."""
    return [instance(kind, engine) for kind in KINDS]


def files_to_read(engine: str) -> list[str]:
    """Paths that the plan looks at in the snapshot."""
    return [path(kind, engine) for kind in KINDS for path in (configuration_path, _stamp_path)]


def configuration_path(kind: str, engine: str) -> str:
    return f"/etc/llm/{kind.removeprefix('llm-')}-{engine}.json"


def _stamp_path(kind: str, engine: str) -> str:
    return f"/run/{kind}-{engine}/started"


def configurations(settings: Settings) -> dict[str, str | None]:
    """Kind -> what its program reads (files/fleet_host/watch.py, log_file.py); None: not wanted."""
    watch, log = settings.engine.watch, settings.engine.log_file
    document = {
        "interval_seconds": watch.interval_seconds,
        "answer_seconds": watch.answer_seconds,
        "start_timeout_seconds": settings.engine.start_timeout_seconds,
    }
    rotated = {"max_mb": log.max_mb, "keep": log.keep} if log is not None else None
    return {
        WATCH: json.dumps(document) + "\n" if watch.enabled else None,
        LOG: json.dumps(rotated) + "\n" if rotated is not None else None,
    }


def plan_engine_care(
    settings: Settings, snapshot: Mapping[str, Any], units: Mapping[str, ManagedFile]
) -> Care:
    """On an engine host that is not refused. `units`: ours, as rendered."""
    engine = settings.engine.name
    files = snapshot.get("files") or {}
    seen_units = snapshot.get("units") or {}
    write: list[ManagedFile] = []
    changes: dict[str, list[str]] = {"remove": [], "stop": [], "start": []}
    for kind, configuration in configurations(settings).items():
        path, unit = configuration_path(kind, engine), instance(kind, engine)
        seen = seen_units.get(unit) or {}
        if configuration is None:
            if seen.get("active") == "active" or seen.get("enabled") == "enabled":
                changes["stop"].append(unit)
            if files.get(path):
                changes["remove"].append(path)
            continue
        file = ManagedFile(path, configuration)
        if not _is(file, files):
            write.append(file)
        text = started_with(units[f"{kind}@.service"].content, configuration)
        stamp = files.get(_stamp_path(kind, engine)) or {}
        runs = seen.get("active") == "active" and seen.get("enabled") == "enabled"
        if not runs or stamp.get("sha256") != ManagedFile("", text).sha256:
            changes["start"].append(unit)
    remove, stop, start = (tuple(changes[name]) for name in ("remove", "stop", "start"))
    return Care(files=tuple(write), remove=remove, stop=stop, start=start)


def _is(file: ManagedFile, files: Mapping[str, Any]) -> bool:
    seen = files.get(file.path) or {}
    found = (seen.get("sha256"), seen.get("mode"), seen.get("owner"), seen.get("group"))
    return found == (file.sha256, file.mode, file.owner, file.group)
