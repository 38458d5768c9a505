"""What a unit with a configuration was started with: a deploy can tell whether to restart it.

/run/UNIT/started holds one digest, of the unit's file and its configuration as they were at the
start. The deploy compares it with what it would write; a run that was killed between writing and
restarting thus loses no restart.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from . import durable, layout

if TYPE_CHECKING:
    from pathlib import Path


def digest(unit_text: bytes, configuration: bytes) -> str:
    return hashlib.sha256(unit_text + b"\0" + configuration).hexdigest()


def write(unit: str, configuration: Path, template: str = "") -> None:
    """Into the unit's RuntimeDirectory=, /run/UNIT. template: of an instance, the unit's file."""
    file = layout.etc_root() / "systemd" / "system" / f"{template or unit}.service"
    unit_text = file.read_bytes() if file.exists() else b""
    text = digest(unit_text, configuration.read_bytes()) + "\n"
    durable.write_file(layout.run_root() / unit / "started", text)
