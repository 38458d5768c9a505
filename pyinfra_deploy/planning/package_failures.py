"""Pure: what apt and dpkg said of an installation that failed, as cause and next move.

Their words, without translation, are those of apt 2.6 and 3.0 and dpkg 1.21 and 1.22 (Debian 12 and
13); what is not known here is told in apt's own last lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Printed between `apt-get update` and `apt-get install`.
MARK = "fleet: installing"
DETAIL_LINES = 12
_AGAIN = "then run the same command again"
_NEWS = re.compile(r"^(E:|W: Failed|dpkg: error|No space left|debconf: )|^ \S+ : ")
_SOURCES = "/etc/apt/sources.list and /etc/apt/sources.list.d"


@dataclass(frozen=True)
class _Known:
    sign: str
    why: str
    fix: str


_FULL = _Known(
    r"No space left on device|You don't have enough free space|Disk quota exceeded",
    "the host's disk is full.",
    "make room there (df -h / /var /boot; `apt-get clean` drops what apt has downloaded), "
    + _AGAIN,
)
_READ_ONLY = _Known(
    r"Read-only file system",
    "the host's file system is read-only, as after a disk error.",
    f"look at `dmesg`, mend the disk, {_AGAIN}",
)
_LOCKED = _Known(
    r"Could not get lock|Unable to (?:acquire|lock)|lock was locked by another process",
    "another package manager is at work on the host, and did not end in ten minutes.",
    "the line below names its process: let it end, or stop it (`systemctl stop "
    f"unattended-upgrades apt-daily-upgrade.service`), {_AGAIN}",
)
_MIRROR = _Known(
    r"Could not resolve|Temporary failure resolving|Could not connect|Unable to connect|Connection "
    r"(?:failed|timed out|refused|reset)|connection timed out|Network is unreachable|Failed to "
    r"fetch|Certificate verification failed|Undetermined Error",
    "a package mirror of the host cannot be reached, or does not have what its lists say.",
    f"see `apt-get update` on the host: name server, route, proxy (/etc/apt/apt.conf.d), {_SOURCES}"
    f" (without internet: docs/offline.md); {_AGAIN}",
)
_UNKNOWN = _Known(
    r"Unable to locate package|has no installation candidate|Couldn't find any package",
    "the host's package sources do not have it.",
    f"see `apt-cache policy NAME` there, add the source that has it to {_SOURCES}, {_AGAIN}",
)
_SIGNATURE = _Known(
    r"NO_PUBKEY|is not signed|signatures? (?:couldn't be|were invalid)|could not be authenticated"
    r"|Hash Sum mismatch|does not have a Release file",
    "a package source of the host is not signed by a key known there, or changed meanwhile.",
    f"see `apt-get update` there, install the source's key or remove the source, {_AGAIN}",
)
_BROKEN = _Known(
    r"held broken packages|unmet dependencies|Unmet dependencies",
    "what is installed, held or offered there does not fit together.",
    f"see `apt-get -s install NAME` and `apt-mark showhold` on the host, mend that, {_AGAIN}",
)
_DPKG = _Known(
    r"dpkg was interrupted|returned an error code|dpkg: error",
    "dpkg could not unpack or configure a package.",
    f"mend what it names below, try `dpkg --configure -a` on the host, {_AGAIN}",
)
# The first that is found counts: a full disk also makes dpkg end with an error code, a mirror that
# is gone makes apt say that fetching failed.
_KNOWN = (_FULL, _READ_ONLY, _LOCKED, _SIGNATURE, _MIRROR, _UNKNOWN, _BROKEN, _DPKG)


def package_failure(packages: Sequence[str], output: Sequence[str]) -> dict[str, object]:
    """{what, why, fix, detail} of an installation, from all that it printed."""
    lines = [line.rstrip() for line in output if line.strip()]
    start = lines.index(MARK) if MARK in lines else 0
    before, after = "\n".join(lines[:start]), "\n".join(lines[start:])
    known = _found(after)
    if known in (None, _UNKNOWN):
        # Without its lists apt knows no package; and what a mark is missing before, came first.
        known = next((it for it in (_FULL, _MIRROR, _SIGNATURE) if _says(it, before)), known)
    news = [line for line in lines if line != MARK and _NEWS.search(line)]
    return {
        "what": f"{', '.join(packages)} could not be installed",
        "why": known.why if known else "apt-get failed, in its own words below.",
        "fix": known.fix if known else f"mend what it names below, {_AGAIN}",
        "detail": list(dict.fromkeys(news))[-DETAIL_LINES:] or lines[-DETAIL_LINES:],
    }


def _found(text: str) -> _Known | None:
    return next((known for known in _KNOWN if _says(known, text)), None)


def _says(known: _Known, text: str) -> bool:
    return re.search(known.sign, text) is not None
