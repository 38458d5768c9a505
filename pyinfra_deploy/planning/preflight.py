"""What is refused before the first change: things that would fail later, and cost more there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.drain import drain_findings, stopped_findings
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.interpreter import SUPPORTED, interpreter_findings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyinfra_deploy.facts.hardware import Hardware
    from pyinfra_deploy.settings.schema import Settings

# The newest layout of a host's state that this version understands (design: older tools refuse).
STATE_SCHEMA_VERSION = 1
# Sections of the snapshot that decisions are made from.
PLANNED_FROM = (
    *("os", "packages", "users", "files", "units", "sysctl", "disk", "state"),
    *("environments", "models", "engines", "gateway"),
)
GIB = 1024**3
# An unpacked vLLM with CUDA libraries is about 9 GB, the CPU build 2.5 GB; installing needs the
# downloaded wheels beside it.
RUNTIME_FREE_BYTES = {"cuda": 20 * GIB, "cpu": 6 * GIB}


def preflight(
    host: str, groups: frozenset[str], settings: Settings, snapshot: Mapping[str, Any]
) -> tuple[Finding, ...]:
    """Every refusal and warning for one host, from its settings and its snapshot."""
    return tuple(_findings(host, groups, settings, snapshot))


def preflight_from_facts(
    groups: frozenset[str], settings: Settings, hardware: Hardware
) -> tuple[Finding, ...]:
    """The same for a host of which only the hardware's facts were collected: what they tell. What
    of ours is there is not among them, nor ports and privileges."""
    return tuple(_from_facts(groups, settings, hardware))


def os_facts(hardware: Hardware) -> dict[str, Any]:
    """The snapshot's section `os`, as far as the hardware's facts tell it."""
    system = {
        "id": hardware.os_id,
        "version_id": hardware.os_version,
        "arch": hardware.machine,
        "pythons": list(hardware.pythons),
        "is_root": True,  # not told, and so not refused
    }
    return {"os": system}


def _from_facts(
    groups: frozenset[str], settings: Settings, hardware: Hardware
) -> Iterator[Finding]:
    host = hardware.host
    facts = os_facts(hardware)
    yield Finding(
        "host.no-snapshot",
        "note",
        host,
        "facts",
        "these facts do not tell what of ours is on the host, so it is not known what a deploy "
        "would change there, nor whether ports are free",
        "collect them with `fleet facts collect`, which writes snapshot.json beside the others",
        source="docs/planning.md",
    )
    if hardware.os_id is None:
        return  # facts.unread says so
    yield from _operating_system(host, facts)
    if "gpu" in groups and settings.runtime is not None and hardware.pythons:
        yield from interpreter_findings(host, settings, facts)


def _findings(
    host: str, groups: frozenset[str], settings: Settings, snapshot: Mapping[str, Any]
) -> Iterator[Finding]:
    unreadable = tuple(_unreadable(host, snapshot))
    if unreadable:
        yield from unreadable
        return
    yield from _operating_system(host, snapshot)
    yield from _state(host, snapshot)
    if "gpu" in groups:
        yield from interpreter_findings(host, settings, snapshot)
        yield from _runtime_space(host, settings, snapshot)
        yield from drain_findings(host, settings.engine.name, snapshot)
        yield from stopped_findings(host, settings.engine.name, snapshot)
    if "gateway" in groups:
        assert settings.gateway is not None
        https, http = settings.gateway.https_port, settings.gateway.http_port
        ports = {"gateway.https_port": https, "gateway.http_port": http}
        yield from port_findings(host, ports, snapshot)


def _unreadable(host: str, snapshot: Mapping[str, Any]) -> Iterator[Finding]:
    """What the plan is made from must have been read: an unknown is not an absent."""
    for section in PLANNED_FROM:
        found = snapshot.get(section)
        if isinstance(found, dict) and "error" in found:
            yield Finding(
                "host.unreadable",
                "refuse",
                host,
                section,
                f"the host's {section} could not be read, so nothing can be decided about it",
                "mend what is named below on the host, then run again",
                evidence=str(found["error"]),
            )


def _operating_system(host: str, snapshot: Mapping[str, Any]) -> Iterator[Finding]:
    system = snapshot["os"]
    found = (str(system.get("id")), str(system.get("version_id")))
    if found not in SUPPORTED:
        names = ", ".join(f"{name.capitalize()} {version}" for name, version in SUPPORTED)
        yield Finding(
            "os.unsupported",
            "refuse",
            host,
            "operating system",
            "this distribution is not one that the deploy is written and tested for",
            f"install one of {names}, or take the host out of the inventory",
            evidence=f"ID={found[0]} VERSION_ID={found[1]}",
        )
    if not system.get("is_root"):
        yield Finding(
            "host.not-root",
            "refuse",
            host,
            "privileges",
            "the commands do not run as root",
            "set ansible_become: true for the host, and let its user run sudo",
        )
    if system.get("arch") not in (None, "x86_64"):
        yield Finding(
            "os.architecture",
            "refuse",
            host,
            "processor",
            "the locked runtimes are built for x86_64",
            "use an x86_64 host",
            evidence=str(system.get("arch")),
        )
    if system.get("systemd_running") is False:
        yield Finding(
            "os.no-systemd",
            "refuse",
            host,
            "systemd",
            "systemd does not run this host, and every service of ours is one of its units",
            "use a host that boots with systemd, not a container without it",
        )


def _state(host: str, snapshot: Mapping[str, Any]) -> Iterator[Finding]:
    version = snapshot.get("state", {}).get("schema_version")
    if isinstance(version, int) and version > STATE_SCHEMA_VERSION:
        yield Finding(
            "state.newer",
            "refuse",
            host,
            "state on the host",
            "a newer version of this project has written this host's state",
            "update this checkout (git pull) and run again",
            evidence=f"schema {version}, this version knows {STATE_SCHEMA_VERSION}",
        )


def _runtime_space(host: str, settings: Settings, snapshot: Mapping[str, Any]) -> Iterator[Finding]:
    assert settings.runtime is not None
    disk = snapshot.get("disk", {}).get("llm_root", {})
    free = disk.get("free_bytes")
    if not isinstance(free, int):
        return
    runtimes = [
        path
        for path in snapshot.get("environments", {})
        if f"{settings.llm_root}/runtimes/" in path
    ]
    needed = RUNTIME_FREE_BYTES[settings.runtime.device]
    if not runtimes and free < needed:
        yield Finding(
            "disk.runtime",
            "refuse",
            host,
            f"disk of {settings.llm_root}",
            f"{free / GIB:.1f} GiB are free, a {settings.runtime.device} runtime needs "
            f"{needed / GIB:.0f} GiB while it is installed (the model comes on top)",
            f"free space on {disk.get('path')}, mount a larger disk there, or set llm_root "
            "to a path on one",
        )


def port_findings(
    host: str, ports: Mapping[str, int], snapshot: Mapping[str, Any]
) -> Iterator[Finding]:
    """Ports, by the settings that name them, at which something else than Nginx listens."""
    listeners = snapshot.get("listeners")
    if not isinstance(listeners, list):
        return
    for key, port in ports.items():
        for listener in listeners:
            if listener["port"] != port or not str(listener["proto"]).startswith("tcp"):
                continue
            if listener.get("process") == "nginx" or listener.get("unit") == "nginx.service":
                continue
            who = listener.get("unit") or listener.get("process") or "an unknown process"
            yield Finding(
                "gateway.port-taken",
                "refuse",
                host,
                key,
                f"port {port} is taken by {who}, so Nginx could not listen there",
                f"stop {who} on the host (systemctl disable --now ...), or write another {key}",
                evidence=f"{listener['proto']} {listener['address']}:{port} "
                f"pid {listener.get('pid')} {listener.get('process')}",
            )
            break
