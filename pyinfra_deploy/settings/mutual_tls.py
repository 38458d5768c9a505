"""Who talks to whom between hosts, and by which names: gateways with the engines of other hosts.

A gateway host in mode full that has engines of other hosts behind it presents a client's
certificate; a gpu host that is no gateway itself lets these gateways in by its "door". Both have
certificates of the inventory's own CA, by names that nobody else's certificate has.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyinfra_deploy.settings.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyinfra_deploy.settings.fleet import Fleet, FleetHost

Role = Literal["", "gateway", "engine"]

# RFC 1035, 2.3.4.
_LABEL_LENGTH = 63
# X.520's upper bound of a common name.
_COMMON_NAME_LENGTH = 64
_DIGEST_LENGTH = 10


@dataclass(frozen=True)
class MutualTls:
    """Of one host. role: "gateway" comes with a client's certificate, "engine" has a door, "" has
    neither. name: the one in its certificate. Of a door: gateways, the common names that it lets
    in; its port; and of what these gateways let their clients do the most: MiB of a request (None
    where all leave it to the model's length), seconds of silence."""

    role: Role = ""
    name: str = ""
    gateways: tuple[str, ...] = ()
    port: int = 8443
    max_body_mb: int | None = None
    read_timeout_seconds: int = 600


NOBODY = MutualTls()


def internal_domain(fleet_name: str) -> str:
    """A domain for the hosts among themselves. `.internal` is reserved for such (ICANN, 2024)."""
    label = re.sub(r"[^a-z0-9]+", "-", fleet_name.lower()).strip("-") or "fleet"
    return f"{label[:_LABEL_LENGTH]}.fleet.internal"


def host_identity(host: str, role: Role, fleet_name: str) -> str:
    """The name in a host's certificate, such as gpu01.engine.prod.fleet.internal.

    A host's name that is no label of DNS (upper case, dots, an address) gets one, with a digest of
    the whole name, so that no two hosts have the same.
    """
    label = re.sub(r"[^a-z0-9]+", "-", host.lower()).strip("-")
    if label != host or len(label) > _LABEL_LENGTH:
        digest = hashlib.sha256(host.encode()).hexdigest()[:_DIGEST_LENGTH]
        label = f"{label[: _LABEL_LENGTH - _DIGEST_LENGTH - 1]}-{digest}".lstrip("-")
    return f"{label}.{role}.{internal_domain(fleet_name)}"


def common_name(identity: str) -> str:
    """The common name of a certificate for `identity`: itself, or where it is too long its digest.
    Nginx tells clients apart by their subject alone."""
    if len(identity) <= _COMMON_NAME_LENGTH:
        return identity
    return hashlib.sha256(identity.encode()).hexdigest()[:_COMMON_NAME_LENGTH]


def engine_hosts(fleet: Fleet) -> list[FleetHost]:
    """The gpu hosts that have a door: those that are no gateways, where there is one in mode full
    to come through it."""
    if not _gateways(fleet):
        return []
    return [
        host
        for host in fleet.hosts.values()
        if "gpu" in host.groups and "gateway" not in host.groups
    ]


def mutual_tls_of(fleet: Fleet, host: FleetHost) -> MutualTls:
    """What a host is between hosts."""
    engines = {one.name for one in engine_hosts(fleet)}
    gateways = _gateways(fleet)
    role: Role = ""
    if host.name in engines:
        role = "engine"
    elif engines and host.name in {one.name for one in gateways}:
        role = "gateway"
    if not role:
        return NOBODY
    identity = host_identity(host.name, role, fleet.name)
    if role == "gateway":
        return MutualTls(role, identity)
    names = [common_name(host_identity(one.name, "gateway", fleet.name)) for one in gateways]
    settings = [one.settings.gateway for one in gateways if one.settings.gateway is not None]
    return MutualTls(
        role,
        identity,
        tuple(sorted(names)),
        port=settings[0].engine_port,
        max_body_mb=max((one.max_body_mb for one in settings if one.max_body_mb), default=None),
        read_timeout_seconds=max(one.read_timeout_seconds for one in settings),
    )


def differing_ports(hosts: Mapping[str, FleetHost]) -> Iterator[Problem]:
    """Gateways that would come to the engines of other hosts at different ports."""
    ports = {
        name: host.settings.gateway.engine_port
        for name, host in hosts.items()
        if "gateway" in host.groups and host.settings.gateway is not None
    }
    if len(set(ports.values())) > 1:
        told = ", ".join(f"{name}: {port}" for name, port in sorted(ports.items()))
        yield Problem(
            "group_vars",
            None,
            "gateway.engine_port",
            None,
            None,
            f"differs between the gateways ({told}), and an engine's host has one door.",
            "write the same for all of them.",
        )


def from_data(data: Mapping[str, Any]) -> MutualTls:
    """Of a host's data `fleet`, where pyinfra keeps plain values."""
    found = data.get("mutual_tls") or {}
    return MutualTls(
        role=found.get("role", ""),
        name=str(found.get("name", "")),
        gateways=tuple(found.get("gateways", ())),
        port=int(found.get("port", NOBODY.port)),
        max_body_mb=found.get("max_body_mb"),
        read_timeout_seconds=int(found.get("read_timeout_seconds", NOBODY.read_timeout_seconds)),
    )


def as_data(found: MutualTls) -> dict[str, Any]:
    """As from_data() reads it."""
    return {**asdict(found), "gateways": list(found.gateways)}


def _gateways(fleet: Fleet) -> list[FleetHost]:
    return [
        host
        for host in fleet.hosts.values()
        if "gateway" in host.groups
        and host.settings.gateway is not None
        and host.settings.gateway.mode == "full"
    ]
