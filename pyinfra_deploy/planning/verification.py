"""Whether a host's service has to be used as a client would, through HTTPS, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ENGINE = ("release", "binding")
GATEWAY = ("gateway", "shape", "configuration", "nginx", "certificate")


def unverified_reason(snapshot: Mapping[str, Any], engine: str | None) -> str:
    """Why what runs has to be verified although this run changes nothing of it; empty when the last
    verification that passed (files/fleet_host/verified.py) was of just that. engine: None on a host
    that has none, a gateway in front of others.

    What runs is compared, not what this run changes: one that was killed after its go-live loses no
    verification. A drained host answers no client, so it is verified after that.
    """
    found = (snapshot.get("engines") or {}).get(engine or "") or {}
    if found.get("draining"):
        return ""
    verified = (snapshot.get("state") or {}).get("verified")
    if not isinstance(verified, dict) or "error" in verified:
        return "what runs has not been verified yet"
    running = _what_runs(snapshot, found)
    if any(verified.get(key) != running[key] for key in ENGINE):
        return f"release {running['release']} has not been verified since it was started"
    if any(verified.get(key) != running[key] for key in GATEWAY):
        return "the gateway has not been verified since it was changed"
    return ""


def _what_runs(snapshot: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    """As files/fleet_host/verified.py, from the snapshot."""
    started, gateway = engine.get("started") or {}, snapshot.get("gateway") or {}
    return {
        "release": started.get("release"),
        "binding": started.get("binding"),
        "gateway": (gateway.get("started") or {}).get("environment"),
        "shape": (gateway.get("started") or {}).get("shape"),
        "configuration": gateway.get("configuration")
        if (gateway.get("started") or {}).get("shape")
        else None,
        "nginx": gateway.get("nginx_loaded"),
        "certificate": (gateway.get("certificate") or {}).get("fingerprint"),
    }
