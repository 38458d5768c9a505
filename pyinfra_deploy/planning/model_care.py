"""The timer that verifies models in the background: what has to be written, started, stopped.

It fires every day; whether a model is due is decided on the host from its record, so neither a
reboot nor another period starts the count anew.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.host_care import Care
from pyinfra_deploy.planning.wanted import ManagedFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.settings.schema import Settings

TIMER = "llm-verify.timer"
TIMER_PATH = f"/etc/systemd/system/{TIMER}"
# What the job reads (files/fleet_host/verification.py).
CONFIGURATION = "/etc/llm/verify.json"
# The job's unit is on every engine host: an operator can have models verified at any time.
UNIT_FILES = ("llm-verify@.service",)


def configuration(settings: Settings) -> str | None:
    """None: nothing is verified unless it is asked for."""
    days = settings.model.verify_every_days if settings.model is not None else None
    return json.dumps({"every_days": days}) + "\n" if days is not None else None


def plan_model_care(
    settings: Settings, snapshot: Mapping[str, Any], units: Mapping[str, ManagedFile]
) -> Care:
    """On an engine host that is not refused. `units`: ours, as rendered."""
    files = snapshot.get("files") or {}
    seen = (snapshot.get("units") or {}).get(TIMER) or {}
    text = configuration(settings)
    if text is None:
        present = tuple(path for path in (TIMER_PATH, CONFIGURATION) if files.get(path))
        runs = seen.get("active") == "active" or seen.get("enabled") == "enabled"
        return Care(stop=(TIMER,) if runs or files.get(TIMER_PATH) else (), remove=present)
    timer = units[TIMER]
    write = tuple(
        file
        for file in (timer, ManagedFile(CONFIGURATION, text))
        if not file.is_as(files.get(file.path) or {})
    )
    runs = seen.get("active") == "active" and seen.get("enabled") == "enabled"
    return Care(files=write, start=() if runs and timer not in write else (TIMER,))
