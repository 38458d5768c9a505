"""What has to change for a host's gateway: service, keys, certificate, Nginx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning import nginx, wanted
from pyinfra_deploy.planning.body_limit import max_body_mb
from pyinfra_deploy.planning.certificate import certificate_reason
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.release import digest_of, digest_of_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.planning.artefacts import Artefacts
    from pyinfra_deploy.planning.nginx_build import NginxFiles
    from pyinfra_deploy.planning.wanted import Environment
    from pyinfra_deploy.settings.schema import Gateway, Settings

GATEWAY_UNIT = "llm-gateway.service"
OWN_CERTIFICATE = "/etc/llm/tls/server.crt"
OWN_KEY = "/etc/llm/tls/server.key"
ACME_WEBROOT = "/var/lib/llm-acme"


def plan_gateway(
    settings: Settings,
    snapshot: Mapping[str, Any],
    artefacts: Artefacts,
    environments: Mapping[str, Any],
    uv: Environment,
    python: str,
) -> dict[str, Any]:
    environment = wanted.gateway_environment(
        settings, artefacts.gateway_lock, artefacts.gateway_sources, python, f"{uv.path}/bin/uv"
    )
    gateway = snapshot.get("gateway") or {}
    units = snapshot.get("units") or {}
    serial = gateway.get("keys_serial")
    return {
        "gateway_name": environment.name,
        "gateway_environment": environment if wanted.missing(environment, environments) else None,
        "gateway_activate": _activate_reason(environment, gateway, units.get(GATEWAY_UNIT) or {}),
        "keys": not isinstance(serial, int) or serial < artefacts.keys_serial,
        "certificate": certificate_reason(
            settings, gateway.get("certificate"), artefacts.ca_subject, artefacts.now
        ),
        "nginx": _nginx_reason(settings, snapshot, units.get("nginx.service") or {}),
    }


def keys_findings(
    host: str, snapshot: Mapping[str, Any], artefacts: Artefacts
) -> tuple[Finding, ...]:
    """A checkout whose keys are older than the host's: it leaves them alone, and says so."""
    serial = (snapshot.get("gateway") or {}).get("keys_serial")
    ours = artefacts.keys_serial
    if not isinstance(serial, int) or serial <= ours:
        return ()
    here = f"has serial {ours}" if ours else "is not in this checkout"
    return (
        Finding(
            "gateway.keys-older",
            "warn",
            host,
            "keys.json",
            f"it {here}, and the host has serial {serial}: keys were changed from another "
            "checkout. The host keeps its own.",
            "bring keys.json of the inventory to its newest state (git pull) before the next "
            "`fleet keys`, which is refused until then",
        ),
    )


def _activate_reason(
    environment: Environment, gateway: Mapping[str, Any], unit: Mapping[str, Any]
) -> str:
    if gateway.get("current") != environment.name:
        return f"{environment.name} instead of {gateway.get('current') or 'nothing'}"
    if unit.get("active") != "active" or not gateway.get("socket"):
        return f"it is {unit.get('active') or 'absent'}"
    if unit.get("enabled") != "enabled":
        return "it would not come back after a reboot"
    started = gateway.get("started") or {}
    if started.get("environment") != environment.name:
        return f"{started.get('environment')} is still running"
    return ""


def _nginx_reason(settings: Settings, snapshot: Mapping[str, Any], unit: Mapping[str, Any]) -> str:
    system = snapshot.get("os") or {}
    if not system.get("nginx"):
        return "Nginx is not installed yet"
    rendered = nginx_files(settings, system)
    found = snapshot.get("files") or {}
    for path, text in rendered.files.items():
        seen = found.get(path)
        if not seen or seen.get("sha256") != digest_of_text(text):
            return f"{path} {'differs' if seen else 'is missing'}"
    for path in rendered.remove:
        if found.get(path):
            return f"{path} has to go"
    if unit.get("active") != "active":
        return f"nginx.service is {unit.get('active') or 'absent'}"
    if unit.get("enabled") != "enabled":
        return "Nginx would not come back after a reboot"
    if (snapshot.get("gateway") or {}).get("nginx_loaded") != digest_of(dict(rendered.files)):
        return "Nginx has not loaded it yet"
    return ""


def nginx_files(settings: Settings, system: Mapping[str, Any]) -> NginxFiles:
    """Nginx's configuration for a host, by the versions that its snapshot's `os` names."""
    assert settings.gateway is not None
    gateway, engine = settings.gateway, settings.engine.name
    certificate, key = certificate_paths(gateway)
    flag = nginx.GATEWAY_DRAIN_FLAG if gateway.mode == "full" else f"/run/llm/drain/{engine}"
    return nginx.render(
        gateway,
        nginx.NginxHost(
            nginx_version=str(system["nginx"]),
            openssl_version=system.get("nginx_openssl"),
            engine_socket=f"/run/llm-engine-{engine}/http.sock",
            certificate=certificate,
            certificate_key=key,
            drain_flag=flag,
            max_body_mb=max_body_mb(settings),
            ipv6=bool(system.get("ipv6", True)),
            name_servers=tuple(system.get("name_servers") or ()),
            acme_webroot=ACME_WEBROOT if gateway.tls.source == "acme" else None,
        ),
    )


def certificate_paths(gateway: Gateway) -> tuple[str, str]:
    """(certificate, key) that the vhost names. With ACME too these are ours: certbot's hook
    brings there what it got, and before that they hold a certificate of the inventory's CA."""
    if gateway.tls.source == "files":
        return str(gateway.tls.certificate), str(gateway.tls.key)
    return OWN_CERTIFICATE, OWN_KEY
