"""What has to change for traffic between hosts: certificates of the inventory's CA, the door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning import engine_door, wanted
from pyinfra_deploy.planning.body_limit import body_mb_of_length
from pyinfra_deploy.planning.certificate import own_certificate_reason
from pyinfra_deploy.planning.gateway_plan import nginx_reason
from pyinfra_deploy.planning.preflight import port_findings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.planning.artefacts import Artefacts
    from pyinfra_deploy.planning.finding import Finding
    from pyinfra_deploy.planning.nginx_build import NginxFiles
    from pyinfra_deploy.settings.mutual_tls import MutualTls
    from pyinfra_deploy.settings.schema import Settings


def with_door(groups: frozenset[str], artefacts: Artefacts) -> frozenset[str]:
    """A host's groups, and wanted.DOOR where other hosts' gateways come to its engine."""
    return groups | {wanted.DOOR} if artefacts.mutual_tls.role == "engine" else groups


def plan_door(
    groups: frozenset[str],
    settings: Settings,
    snapshot: Mapping[str, Any],
    artefacts: Artefacts,
) -> dict[str, Any]:
    """The parts of a host's plan that are about other hosts; empty where there are none."""
    identity = artefacts.mutual_tls
    if not identity.role:
        return {}
    seen = (snapshot.get("gateway") or {}).get("host_certificate")
    reason = own_certificate_reason([identity.name], seen, artefacts.ca_subject, artefacts.now)
    plan: dict[str, Any] = {"host_certificate": reason}
    if wanted.DOOR in groups:
        plan["door"] = nginx_reason(lambda system: door_files(settings, identity, system), snapshot)
    return plan


def door_findings(
    host: str, snapshot: Mapping[str, Any], artefacts: Artefacts
) -> tuple[Finding, ...]:
    """What would keep the door from opening."""
    identity = artefacts.mutual_tls
    if identity.role != "engine":
        return ()
    return tuple(port_findings(host, {"gateway.engine_port": identity.port}, snapshot))


def door_files(settings: Settings, identity: MutualTls, system: Mapping[str, Any]) -> NginxFiles:
    """The door's configuration, by the versions that the snapshot's `os` names."""
    engine = settings.engine.name
    return engine_door.render_door(
        engine_door.DoorHost(
            nginx_version=str(system["nginx"]),
            openssl_version=system.get("nginx_openssl"),
            engine_socket=f"/run/llm-engine-{engine}/http.sock",
            drain_flag=f"/run/llm/drain/{engine}",
            door_name=identity.name,
            port=identity.port,
            gateways=identity.gateways,
            max_body_mb=identity.max_body_mb or body_mb_of_length(settings),
            read_timeout_seconds=identity.read_timeout_seconds,
            ipv6=bool(system.get("ipv6", True)),
        )
    )
