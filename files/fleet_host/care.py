"""What a GPU host needs beside its services: units that cool and keep the driver, and holds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from . import chassis_fans, durable, events, fields, holds, layout, programs, systemctl
from .errors import HostError

# A unit of the chassis' fans proves within a minute that they react.
START_SECONDS = 240.0
SMI_SECONDS = 60.0
SMI_FIXES = programs.Fixes(
    absent="Install the NVIDIA driver in full.",
    hangs="Drain the host and reboot it; then look at 'journalctl -k -b -1 | grep Xid'.",
    fails="Run nvidia-smi on the host; 'fleet plan' says what its answer means.",
)
DISTRIBUTION_UNIT = "nvidia-persistenced.service"
OUR_UNIT = "llm-persistence.service"
DAEMON = "usr/bin/nvidia-persistenced"
# Ubuntu's unit runs the daemon with --no-persistence-mode. While the daemon runs, nvidia-smi -pm
# asks it for the mode (nvidia-persistenced(1)), so this needs not know as which user it runs.
DROP_IN = """\
# Written by the LLM deploy: this distribution starts the daemon with persistence mode off.
[Service]
ExecStartPost=/usr/bin/nvidia-smi -pm 1
"""


def care(request: dict[str, Any]) -> dict[str, Any]:
    """`host care` {stop, start: [unit], remove: [path], hold, release: [package], persistence}
    -> {started, stopped, held, released, persistence}.

    stop: disabled and stopped, which undoes what they did. start: enabled and restarted.
    persistence: the text of our own unit, for hosts whose distribution has none; null: leave it.
    """
    known = {"stop", "start", "remove", "hold", "release", "persistence"}
    fields.refuse_unknown(request, known, "care")
    stop, start = fields.texts(request, "stop"), fields.texts(request, "start")
    for unit in stop:
        _stop(unit)
    for path in fields.texts(request, "remove"):
        durable.remove_file(Path(path))
    if stop:
        systemctl.call(["daemon-reload"])
    changed = holds.change(fields.texts(request, "hold"), fields.texts(request, "release"))
    unit_text = fields.optional_text(request, "persistence")
    how = None if unit_text is None else keep_driver(unit_text)
    for unit in start:
        _start(unit)
    if start or stop or how:
        events.record("host cared for", started=start, stopped=stop, persistence=how)
    return {"started": start, "stopped": stop, "persistence": how, **changed}


def _stop(unit: str) -> None:
    """Stopped and disabled; a unit that does not exist is fine."""
    state = systemctl.show(unit, ["LoadState", "ActiveState"])
    if state["LoadState"] == "not-found":
        return
    if state["ActiveState"] == "failed":
        systemctl.call(["reset-failed", unit])  # else its old failure looks like one of stopping
    systemctl.call(["disable", "--now", unit], timeout_seconds=START_SECONDS)
    if systemctl.show(unit, ["Result"])["Result"] not in ("", "success"):
        lines = _journal(unit)
        raise HostError(
            f"{unit} did not stop cleanly",
            (lines or ["its journal is empty."])[-1],
            f"See 'journalctl -u {unit}': what it has set may not have been given back.",
            lines,
        )
    if unit == f"{chassis_fans.UNIT}.service":
        chassis_fans.undo({})  # what an earlier stop could not undo; else nothing


def _start(unit: str) -> None:
    systemctl.call(["enable", unit])
    try:
        systemctl.call(["restart", unit], timeout_seconds=START_SECONDS)
    except HostError as error:
        lines = _journal(unit)
        said = _refusal_in(lines)
        raise HostError(
            f"{unit} does not start" + (f": {said['what']}" if said else ""),
            str(said["why"]) if said else error.why,
            str(said["fix"]) if said else f"See 'journalctl -u {unit}' on the host.",
            [str(line) for line in said["detail"]] if said else lines or error.detail,
        ) from error


def _refusal_in(lines: list[str]) -> dict[str, Any] | None:
    """The first refusal that this program has printed into a unit's journal."""
    text = "\n".join(lines)
    for match in re.finditer(r"^\{", text, re.MULTILINE):
        try:
            document, _ = json.JSONDecoder().raw_decode(text, match.start())
        except ValueError:
            continue
        error = document.get("error")
        if isinstance(error, dict) and {"what", "why", "fix", "detail"} <= set(error):
            return error
    return None


def _journal(unit: str) -> list[str]:
    return systemctl.journal_tail(systemctl.show(unit, ["InvocationID"])["InvocationID"])


def keep_driver(unit_text: str) -> str:
    """Persistence mode on, now and after a reboot -> which unit does it."""
    ours = layout.etc_root() / "systemd/system" / OUR_UNIT
    if systemctl.show(DISTRIBUTION_UNIT, ["LoadState"])["LoadState"] == "loaded":
        if ours.exists():  # from before the distribution's package was installed
            _stop(OUR_UNIT)
            durable.remove_file(ours)
            systemctl.call(["daemon-reload"])
        _enable_distribution_unit()
        if not persistence_is_on():
            drop_in = layout.etc_root() / "systemd/system" / f"{DISTRIBUTION_UNIT}.d" / "llm.conf"
            durable.make_directories(drop_in.parent)
            durable.write_file(drop_in, DROP_IN)
            systemctl.call(["daemon-reload"])
            systemctl.call(["restart", DISTRIBUTION_UNIT])
        unit = DISTRIBUTION_UNIT
    else:
        if not (layout.system_root() / DAEMON).exists():
            raise HostError(
                "persistence mode is off and cannot be switched on for good",
                f"there is neither {DISTRIBUTION_UNIT} nor /{DAEMON}.",
                "Install the package that has it: nvidia-persistenced (Debian) or "
                "nvidia-compute-utils-NNN-server (Ubuntu).",
            )
        durable.write_file(ours, unit_text)
        systemctl.call(["daemon-reload"])
        systemctl.call(["enable", OUR_UNIT])
        systemctl.call(["restart", OUR_UNIT])
        unit = OUR_UNIT
    if not persistence_is_on():
        raise HostError(
            "persistence mode is still off",
            f"{unit} runs, and nvidia-smi says that the mode is off.",
            f"See 'journalctl -u {unit}' and 'nvidia-smi -q -d PERFORMANCE' on the host.",
            _journal(unit),
        )
    return unit


def _enable_distribution_unit() -> None:
    # Ubuntu's has no [Install] section: a rule of udev starts it with the first GPU, at every boot.
    state = systemctl.show(DISTRIBUTION_UNIT, ["UnitFileState"])["UnitFileState"]
    if state not in ("static", "enabled", "generated", "indirect", "alias"):
        systemctl.call(["enable", DISTRIBUTION_UNIT])
    systemctl.call(["start", DISTRIBUTION_UNIT])


def persistence_is_on() -> bool:
    """Of every GPU. HostError when nvidia-smi does not tell."""
    command = ["nvidia-smi", "--query-gpu=persistence_mode", "--format=csv,noheader"]
    answer = programs.output_of(command, SMI_SECONDS, SMI_FIXES)
    modes = [line.strip() for line in answer.splitlines() if line.strip()]
    return bool(modes) and all(mode == "Enabled" for mode in modes)
