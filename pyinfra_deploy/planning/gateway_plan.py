"""What has to change for a host's gateway: service, keys, certificate, Nginx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning import gateway_config, nginx, wanted
from pyinfra_deploy.planning.body_limit import max_body_mb
from pyinfra_deploy.planning.certificate import (
    acme_reason,
    certificate_reason,
    expiry_findings,
)
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.release import digest_of, digest_of_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyinfra_deploy.planning.artefacts import Artefacts
    from pyinfra_deploy.planning.hold import Hold
    from pyinfra_deploy.planning.nginx_build import NginxFiles
    from pyinfra_deploy.planning.wanted import Environment
    from pyinfra_deploy.settings.schema import Gateway, Settings

GATEWAY_UNIT = "llm-gateway.service"
GATEWAY_SOCKET = "llm-gateway.socket"
DIRECT = "direct"
CONFIGURATION_DIFFERS = "its configuration differs"
OWN_CERTIFICATE = "/etc/llm/tls/server.crt"
OWN_KEY = "/etc/llm/tls/server.key"
ACME_TIMER = "llm-acme.timer"
ACME_UNITS = ("llm-acme.service", ACME_TIMER)
ACME_LIVE = "/etc/llm/acme/live/llm-gateway"
ACME_WEBROOT = "/var/lib/llm-acme/webroot"


def plan_gateway(
    groups: frozenset[str],
    settings: Settings,
    snapshot: Mapping[str, Any],
    artefacts: Artefacts,
    environments: Mapping[str, Any],
    uv: Environment,
    python: str,
    held: Hold | None = None,
) -> dict[str, Any]:
    environment = wanted.gateway_environment(
        settings, artefacts.gateway_lock, artefacts.gateway_sources, python, f"{uv.path}/bin/uv"
    )
    gateway = snapshot.get("gateway") or {}
    units = snapshot.get("units") or {}
    serial = gateway.get("keys_serial")
    shape = gateway_config.shape_of(settings, artefacts.engines)
    full = shape != DIRECT
    text = gateway_config.service_text(groups, settings, artefacts.engines, held)
    running = _running_shape(gateway)
    return {
        "gateway_name": environment.name,
        "gateway_environment": environment if wanted.missing(environment, environments) else None,
        "gateway_shape": shape,
        "gateway_text": text,
        "gateway_leaves_full": not full and running not in (None, DIRECT),
        "gateway_activate": _activate_reason(environment, gateway, units.get(GATEWAY_UNIT) or {})
        or _shape_reason(shape, running, text, gateway, units.get(GATEWAY_SOCKET) or {}),
        "keys": not isinstance(serial, int) or serial < artefacts.keys_serial,
        "certificate": certificate_reason(
            settings,
            gateway.get("certificate"),
            artefacts.ca_subject,
            artefacts.now,
            acme_certificate=bool((snapshot.get("os") or {}).get("acme_certificate")),
        ),
        "acme": acme_reason(settings, gateway, units.get(ACME_TIMER) or {}, artefacts.now),
        "nginx": nginx_reason(lambda system: nginx_files(settings, system), snapshot),
    }


def gateway_units(settings: Settings) -> tuple[str, ...]:
    """The units that a gateway host has, but for Nginx's own."""
    assert settings.gateway is not None
    acme = ACME_UNITS if settings.gateway.tls.source == "acme" else ()
    return (GATEWAY_UNIT, GATEWAY_SOCKET, *acme)


def gateway_findings(
    host: str, settings: Settings, snapshot: Mapping[str, Any], artefacts: Artefacts
) -> tuple[Finding, ...]:
    """What is worth a word, and keeps nothing from being done."""
    gateway = snapshot.get("gateway") or {}
    return (
        *keys_findings(host, snapshot, artefacts),
        *direct_findings(host, settings, artefacts),
        *expiry_findings(host, settings, gateway, artefacts.now),
    )


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


def direct_findings(host: str, settings: Settings, artefacts: Artefacts) -> tuple[Finding, ...]:
    """Keys that are meant to be good for less than everything, where nothing heeds that."""
    assert settings.gateway is not None
    names = artefacts.limited_keys
    if settings.gateway.mode != DIRECT or not names or settings.gateway.auth.url is not None:
        return ()
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return (
        Finding(
            "gateway.keys-unlimited",
            "warn",
            host,
            "gateway.mode",
            f"it is direct, which heeds no tier, models or limits of a key: {shown} may use "
            "everything there",
            "set gateway.mode to full, or make these keys without limits (`fleet keys rotate` "
            "keeps them)",
        ),
    )


def _activate_reason(
    environment: Environment, gateway: Mapping[str, Any], unit: Mapping[str, Any]
) -> str:
    if gateway.get("current") != environment.name:
        return f"{environment.name} instead of {gateway.get('current') or 'nothing'}"
    if unit.get("active") != "active":
        return f"it is {unit.get('active') or 'absent'}"
    if unit.get("enabled") != "enabled":
        return "it would not come back after a reboot"
    started = gateway.get("started") or {}
    if started.get("environment") != environment.name:
        return f"{started.get('environment')} is still running"
    return ""


def nginx_reason(
    render: Callable[[Mapping[str, Any]], NginxFiles], snapshot: Mapping[str, Any]
) -> str:
    """Why Nginx has to be given its configuration, empty when it runs with it. render: makes it,
    from the snapshot's section `os`."""
    system = snapshot.get("os") or {}
    unit = (snapshot.get("units") or {}).get("nginx.service") or {}
    if not system.get("nginx"):
        return "Nginx is not installed yet"
    rendered = render(system)
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


def _running_shape(gateway: Mapping[str, Any]) -> str | None:
    """What the service was started as; one of before there were shapes has none and is direct."""
    started = gateway.get("started")
    return (started.get("shape") or DIRECT) if isinstance(started, dict) else None


def _shape_reason(
    shape: str,
    running: str | None,
    text: str | None,
    gateway: Mapping[str, Any],
    socket: Mapping[str, Any],
) -> str:
    if running != shape:
        return f"it runs as {running or 'nothing known'} instead of {shape}"
    if text is None:
        return "" if gateway.get("socket") else "its socket is gone"
    if gateway.get("configuration") != digest_of_text(text):
        known = gateway.get("configuration")
        return CONFIGURATION_DIFFERS if known else "its configuration is missing"
    if socket.get("active") != "active" or not gateway.get("service_socket"):
        return f"{GATEWAY_SOCKET} is {socket.get('active') or 'absent'}"
    if socket.get("enabled") != "enabled":
        return "its socket would not come back after a reboot"
    return ""


def nginx_files(settings: Settings, system: Mapping[str, Any]) -> NginxFiles:
    """Nginx's configuration for a host, by the versions that its snapshot's `os` names."""
    assert settings.gateway is not None
    gateway, engine = settings.gateway, settings.engine.name
    certificate, key = certificate_paths(gateway, bool(system.get("acme_certificate")))
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


def certificate_paths(gateway: Gateway, acme_certificate: bool) -> tuple[str, str]:
    """(certificate, key) that the vhost names. acme_certificate: certbot has got one; until then
    one of the inventory's CA is served, as the authority asks only a server that runs."""
    if gateway.tls.source == "files":
        return str(gateway.tls.certificate), str(gateway.tls.key)
    if gateway.tls.source == "acme" and acme_certificate:
        return f"{ACME_LIVE}/fullchain.pem", f"{ACME_LIVE}/privkey.pem"
    return OWN_CERTIFICATE, OWN_KEY


def other_certificate(gateway: Gateway) -> str | None:
    """The vhost's certificate where it is not one of ours, for the snapshot to look at."""
    if gateway.tls.source == "own_ca":
        return None
    return certificate_paths(gateway, acme_certificate=True)[0]
