"""What a GPU host needs beside its services: fans, a driver that stays loaded and is not replaced.

From settings, snapshot and hardware to what has to change. A host whose settings no longer ask for
something gets rid of exactly what was set up for it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.bmc_table import bmc_board, chassis_fans_file
from pyinfra_deploy.planning.driver_packages import driver_packages
from pyinfra_deploy.planning.hardware_findings import uses_gpus
from pyinfra_deploy.planning.wanted import ManagedFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.facts.hardware import Hardware
    from pyinfra_deploy.settings.schema import Settings

FANS, CHASSIS, PERSISTENCE = (
    "llm-fans.service",
    "llm-chassis-fans.service",
    "llm-persistence.service",
)
COOLING_UNITS = (FANS, CHASSIS)
# Units whose state the plan looks at in the snapshot.
UNITS = (FANS, CHASSIS, "nvidia-persistenced.service")
CONFIGURATIONS = {FANS: "/etc/llm/fans.json", CHASSIS: "/etc/llm/chassis-fans.json"}
# After Debian's and Ubuntu's 50unattended-upgrades, whose list it adds to (apt.conf(5)).
HOLD_FILE = "/etc/apt/apt.conf.d/52llm-driver-hold"
POLL_SECONDS = 5


@dataclass(frozen=True)
class Care:
    """What has to change. files are written first, then units stopped and paths removed, packages
    held and released, units started. persistence: the text of our own unit, if the mode is off."""

    files: tuple[ManagedFile, ...] = ()
    remove: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    hold: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    persistence: str | None = None

    def reasons(self) -> list[str]:
        lines = []
        if self.stop:
            lines.append(f"stop and remove {', '.join(self.stop)}: settings no longer ask for it")
        elif self.remove:
            lines.append(f"remove {', '.join(self.remove)}")
        if self.hold:
            lines.append(f"hold {_some(self.hold)}")
        if self.release:
            lines.append(f"give up our hold of {_some(self.release)}")
        if self.persistence is not None:
            lines.append("switch persistence mode on, now and at every boot")
        if self.start:
            lines.append(f"start {', '.join(self.start)}")
        return lines

    def joined(self, other: Care) -> Care:
        """Both, this one's first."""
        return Care(
            files=self.files + other.files,
            remove=self.remove + other.remove,
            stop=self.stop + other.stop,
            start=self.start + other.start,
            hold=self.hold + other.hold,
            release=self.release + other.release,
            persistence=self.persistence or other.persistence,
        )

    def request(self) -> dict[str, Any]:
        """For `fleet-host host care`."""
        return {
            "remove": list(self.remove),
            "stop": list(self.stop),
            "start": list(self.start),
            "hold": list(self.hold),
            "release": list(self.release),
            "persistence": self.persistence,
        }


NO_CARE = Care()


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def files_to_read() -> list[str]:
    """Paths that the plan looks at in the snapshot."""
    units = (*COOLING_UNITS, PERSISTENCE)
    return [
        *(_unit_path(unit) for unit in units),
        *CONFIGURATIONS.values(),
        *(_stamp_path(unit) for unit in COOLING_UNITS),
        HOLD_FILE,
    ]


def _unit_path(unit: str) -> str:
    return f"/etc/systemd/system/{unit}"


def _stamp_path(unit: str) -> str:
    return f"/run/{unit.removesuffix('.service')}/started"


def plan_care(
    settings: Settings,
    snapshot: Mapping[str, Any],
    hardware: Hardware,
    units: Mapping[str, ManagedFile],
) -> Care:
    """What has to change on an engine host that is not refused. `units`: ours, as rendered.

    hardware: as read; of a host that does not use GPUs it is empty, and nothing is wanted there.
    """
    care = _Change(snapshot)
    gpus = hardware.gpus if uses_gpus(settings) else ()
    cooling: dict[str, str] = {}
    board = bmc_board(hardware)
    if gpus and settings.gpu_cooling == "nvml":
        cooling[FANS] = fans_file(settings)
    elif gpus and settings.gpu_cooling == "bmc" and board is not None:
        percent = settings.chassis_fan_percent
        cooling[CHASSIS] = chassis_fans_file(board, hardware, percent)
    for unit in COOLING_UNITS:
        care.unit(unit, units[unit], cooling.get(unit))
    off = any(gpu.persistence_enabled is False for gpu in gpus)
    care.persistence(units[PERSISTENCE], off and can_persist(hardware, snapshot))
    wants_hold = settings.gpu_driver != "check" and bool(gpus)
    names = driver_packages(hardware) if wants_hold else ()
    care.holds(names, {package.name for package in hardware.packages if package.held})
    return care.done()


def fans_file(settings: Settings) -> str:
    """/etc/llm/fans.json: what `fleet-host fans run` reads."""
    curve = [[point.temperature_c, point.percent] for point in settings.gpu_fan_curve]
    return json.dumps({"curve": curve, "poll_seconds": POLL_SECONDS}) + "\n"


def can_persist(hardware: Hardware, snapshot: Mapping[str, Any]) -> bool:
    """Whether there is a daemon to switch persistence mode on with."""
    unit = (snapshot.get("units") or {}).get("nvidia-persistenced.service") or {}
    return unit.get("load") == "loaded" or hardware.persistenced_installed is True


def hold_file(names: tuple[str, ...]) -> ManagedFile:
    """apt.conf(5) for unattended-upgrades, whose list takes regular expressions: exact names."""
    lines = [
        "// Written by the LLM deploy (gpu_driver: hold). These must not change under the loaded",
        "// kernel module: nvidia-smi and every new engine would fail until the next reboot.",
        "Unattended-Upgrade::Package-Blacklist {",
        *(f'    "^{re.escape(name)}$";' for name in names),
        "};",
    ]
    return ManagedFile(HOLD_FILE, "\n".join(lines) + "\n")


class _Change:
    """Compares what is wanted with the snapshot, one thing after another."""

    def __init__(self, snapshot: Mapping[str, Any]) -> None:
        self._files = snapshot.get("files") or {}
        self._units = snapshot.get("units") or {}
        self._ours = set((snapshot.get("state") or {}).get("held_packages") or ())
        self._write: list[ManagedFile] = []
        self._changes: dict[str, list[str]] = {
            name: [] for name in ("remove", "stop", "start", "hold", "release")
        }
        self._persistence: str | None = None

    def done(self) -> Care:
        changes = {name: tuple(names) for name, names in self._changes.items()}
        return Care(files=tuple(self._write), persistence=self._persistence, **changes)

    def _is(self, file: ManagedFile) -> bool:
        seen = self._files.get(file.path) or {}
        found = (seen.get("sha256"), seen.get("mode"), seen.get("owner"), seen.get("group"))
        return found == (file.sha256, file.mode, file.owner, file.group)

    def _have(self, file: ManagedFile) -> None:
        if not self._is(file):
            self._write.append(file)

    def _have_not(self, path: str) -> bool:
        present = bool(self._files.get(path))
        if present:
            self._changes["remove"].append(path)
        return present

    def unit(self, name: str, file: ManagedFile, configuration: str | None) -> None:
        """A cooling unit with its configuration; None: neither is wanted."""
        path = CONFIGURATIONS[name]
        if configuration is None:
            if self._have_not(file.path):
                self._changes["stop"].append(name)
            self._have_not(path)
            return
        self._have(file)
        self._have(ManagedFile(path, configuration))
        started = ManagedFile(_stamp_path(name), started_with(file.content, configuration))
        seen = self._units.get(name) or {}
        runs = seen.get("active") == "active" and seen.get("enabled") == "enabled"
        if not runs or (self._files.get(started.path) or {}).get("sha256") != started.sha256:
            self._changes["start"].append(name)

    def persistence(self, file: ManagedFile, switch_on: bool) -> None:
        if switch_on:
            self._persistence = file.content
        elif self._files.get(file.path):
            self._have(file)  # ours runs there: it follows its template

    def holds(self, names: tuple[str, ...], held: set[str]) -> None:
        self._changes["hold"] += [name for name in names if name not in held]
        self._changes["release"] += sorted(self._ours - set(names))
        if names:
            self._have(hold_file(names))
        else:
            self._have_not(HOLD_FILE)


def started_with(unit_text: str, configuration: str) -> str:
    """What a cooling unit leaves in its run directory (files/fleet_host/stamp.py)."""
    return hashlib.sha256(f"{unit_text}\0{configuration}".encode()).hexdigest() + "\n"
