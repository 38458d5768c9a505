"""Names, addresses and groups of lab hosts: everything that follows from a host's name alone.

A host's address is computed, not allocated, so it survives `reset`, `down` and a lost state file.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Sequence

BRIDGE = "fleetlab0"
NFT_TABLE = "fleet_lab"
NETWORK = "10.213.77.0/24"
PREFIX_LENGTH = 24
BRIDGE_ADDRESS = "10.213.77.1"
# Locally administered, with the address in it.
BRIDGE_MAC = "02:00:0a:d5:4d:01"
NETNS_PREFIX = "fleetlab-"
VETH_PREFIX = "fl-"
ADMIN_USER = "admin"

SUITES = {"bookworm": "Debian 12", "trixie": "Debian 13"}
DEFAULT_SUITE = "bookworm"
INVENTORY_GROUP = "lab"
DEBIAN13_GROUP = "debian13"
ROLE_GROUPS = ("gpu", "gateway")

_GPU_FIRST, _GPU_COUNT = 10, 120
_DEBIAN13_FIRST, _DEBIAN13_COUNT = 150, 90
_NAME = re.compile(r"(gpu|t)([1-9][0-9]{0,2})")


@dataclass(frozen=True)
class Host:
    """One lab host: what state.json remembers of it."""

    name: str
    suite: str
    groups: tuple[str, ...]
    lower: tuple[str, ...] = ()
    """Read-only overlay layers, uppermost first, relative to the state directory."""

    @property
    def address(self) -> str:
        return address_of(self.name)


def address_of(name: str) -> str:
    """gpu1 -> 10.213.77.10, t1 -> 10.213.77.150. LabError for a name outside both ranges."""
    match = _NAME.fullmatch(name)
    if match:
        number = int(match[2])
        first, count = (
            (_GPU_FIRST, _GPU_COUNT) if match[1] == "gpu" else (_DEBIAN13_FIRST, _DEBIAN13_COUNT)
        )
        if number <= count:
            return f"10.213.77.{first + number - 1}"
    raise LabError(
        what=f"{name!r} is not the name of a lab host",
        why=f"hosts are gpu1..gpu{_GPU_COUNT}, and t1..t{_DEBIAN13_COUNT} with Debian 13",
        fix="see the names with `lab status`",
    )


def sort_key(name: str) -> tuple[str, int]:
    return (name.rstrip("0123456789"), int(name.lstrip("abcdefghijklmnopqrstuvwxyz") or 0))


def veth_of(name: str) -> str:
    return f"{VETH_PREFIX}{name}"


def netns_of(name: str) -> str:
    return f"{NETNS_PREFIX}{name}"


def machine_id_of(name: str, salt: str) -> str:
    """32 hex digits, stable for a host and a lab (salt: the lab's public key)."""
    return hashlib.sha256(f"fleet-lab machine-id {name} {salt}".encode()).hexdigest()[:32]


def wanted_hosts(
    count: int, suite: str, debian13_count: int, debian13_roles: Sequence[str]
) -> list[Host]:
    """The hosts that `lab up COUNT --suite SUITE --debian13 K` asks for."""
    if count < 0 or debian13_count < 0 or count > _GPU_COUNT or debian13_count > _DEBIAN13_COUNT:
        raise LabError(
            what=f"cannot make {count} hosts and {debian13_count} Debian 13 hosts",
            why=f"the lab's network has room for {_GPU_COUNT} and {_DEBIAN13_COUNT}",
            fix="ask for fewer: `lab up 3 --debian13 1`",
        )
    if suite not in SUITES:
        raise LabError(
            what=f"unknown suite {suite!r}",
            why=f"the lab has recipes for {', '.join(SUITES)}",
            fix=f"`lab up --suite {DEFAULT_SUITE}`",
        )
    unknown = [role for role in debian13_roles if role not in ROLE_GROUPS]
    if unknown:
        raise LabError(
            what=f"unknown role {unknown[0]!r} for Debian 13 hosts",
            why=f"roles are {' and '.join(ROLE_GROUPS)}",
            fix="`--debian13-role gateway` or `--debian13-role gpu,gateway`",
        )
    extra = (DEBIAN13_GROUP,) if suite == "trixie" else ()
    engines = [
        Host(f"gpu{number}", suite, (INVENTORY_GROUP, *extra, *ROLE_GROUPS))
        for number in range(1, count + 1)
    ]
    others = [
        Host(f"t{number}", "trixie", (INVENTORY_GROUP, DEBIAN13_GROUP, *debian13_roles))
        for number in range(1, debian13_count + 1)
    ]
    return engines + others
