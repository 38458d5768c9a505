"""Where things are on a host. Tests move the roots through the environment."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

from .errors import SpecError


def program() -> Path:
    """The file (zipapp) or directory (a checkout) that this program runs from."""
    started = Path(sys.argv[0]).resolve()
    return started if zipfile.is_zipfile(started) else Path(__file__).resolve().parent


def llm_root() -> Path:
    """The llm_root of this host: FLEET_LLM_ROOT, else two levels above bin/fleet-host."""
    configured = os.environ.get("FLEET_LLM_ROOT")
    if configured:
        return Path(configured)
    here = program()
    if here.is_file() and here.parent.name == "bin":
        return here.parent.parent
    raise SpecError(
        "cannot tell llm_root",
        f"the program runs from {here}, not from {{llm_root}}/bin/fleet-host.",
        "Run the installed program, or set FLEET_LLM_ROOT.",
    )


def run_root() -> Path:
    """/run, where systemd makes a unit's RuntimeDirectory."""
    return Path(os.environ.get("FLEET_RUN_ROOT", "/run"))


def state_root() -> Path:
    """/var/lib, where systemd makes a unit's StateDirectory."""
    return Path(os.environ.get("FLEET_STATE_ROOT", "/var/lib"))


def cache_root() -> Path:
    """/var/cache, where systemd makes a unit's CacheDirectory."""
    return Path(os.environ.get("FLEET_CACHE_ROOT", "/var/cache"))


def etc_root() -> Path:
    """/etc, for what other programs read there: TLS files, Nginx's configuration."""
    return Path(os.environ.get("FLEET_ETC_ROOT", "/etc"))


def log_root() -> Path:
    """/var/log, where Nginx writes its error log."""
    return Path(os.environ.get("FLEET_LOG_ROOT", "/var/log"))


def dmi_root() -> Path:
    """What the firmware says of the machine: sys_vendor, product_name, board_vendor, board_name."""
    return Path(os.environ.get("FLEET_DMI_ROOT", "/sys/class/dmi/id"))


def system_root() -> Path:
    """/, for programs of the distribution."""
    return Path(os.environ.get("FLEET_SYSTEM_ROOT", "/"))
