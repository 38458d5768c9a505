"""Where the hub and the lab's models lie on the machine that runs the lab."""

from __future__ import annotations

import os
from pathlib import Path

BASE_VARIABLE = "FLEET_LAB_DIR"
# A hub beside the lab's, with models, faults and counters of its own.
HUB_VARIABLE = "FLEET_LAB_HUB"
DEFAULT_BASE = Path("/var/lib/fleet-lab")


def hub_directory(base: Path | None = None) -> Path:
    """`base`/hub; without `base` FLEET_LAB_HUB, or hub in the lab's state directory, which
    FLEET_LAB_DIR overrides."""
    other = os.environ.get(HUB_VARIABLE)
    if base is None and other:
        return Path(other)
    chosen = base or Path(os.environ.get(BASE_VARIABLE) or DEFAULT_BASE)
    return chosen / "hub"


def models_directory(hub: Path) -> Path:
    """Models by owner and name, as lab.hub.store lays them out."""
    return hub / "models"


def wheels_directory(hub: Path) -> Path:
    """Wheels that the hub serves under /wheels/."""
    return hub / "wheels"


def log_file(hub: Path) -> Path:
    """One line a request, appended."""
    return hub / "hub.log"


def process_file(hub: Path) -> Path:
    """JSON with the process id, its start time, the address and the pid of the running hub."""
    return hub / "hub.json"


def control_socket(hub: Path) -> Path:
    """The Unix socket, mode 0600, for faults and counters: no lab host can reach it."""
    return hub / "control.sock"
