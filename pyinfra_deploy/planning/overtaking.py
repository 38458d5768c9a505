"""A host that served something else until now, perhaps for another checkout: not taken silently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyinfra_deploy.settings.schema import Settings


def overtaking_findings(
    host: str,
    groups: frozenset[str],
    settings: Settings,
    snapshot: Mapping[str, Any],
    ca_subject: str | None,
) -> Iterator[Finding]:
    """One warning for the name, the CA and the model by which clients knew the host."""
    served: list[str] = []
    if "gateway" in groups:
        served += _certificate(settings, snapshot, ca_subject)
    if "gpu" in groups:
        served += _model(settings, snapshot)
    if served:
        yield Finding(
            "host.overtaken",
            "warn",
            host,
            "what clients know of it",
            "; ".join(served),
            "if this was not meant, stop: two checkouts that deploy one host undo each other's "
            "work. If it was, give clients what they need (the CA is inventories/NAME/ca.crt)",
            source="docs/bad-days.md",
        )


def _certificate(
    settings: Settings, snapshot: Mapping[str, Any], ca_subject: str | None
) -> Iterator[str]:
    assert settings.gateway is not None
    seen = (snapshot.get("gateway") or {}).get("certificate")
    if settings.gateway.tls.source != "own_ca" or not isinstance(seen, dict) or "error" in seen:
        return
    names, issuer = seen.get("sans") or [], seen.get("issuer")
    name, ours = settings.gateway.server_name, ca_subject or issuer
    if name in names and issuer == ours:
        return
    now = f"{name} with one of CA {ours}" if ours else name
    known = ", ".join(str(found) for found in names) or "no name"
    yield f"it served {known} with a certificate of CA {issuer} until now; from now on {now}"


def _model(settings: Settings, snapshot: Mapping[str, Any]) -> Iterator[str]:
    engine = (snapshot.get("engines") or {}).get(settings.engine.name) or {}
    release = (engine.get("releases") or {}).get(engine.get("current"))
    before = release.get("served_model_name") if isinstance(release, dict) else None
    if settings.model is None or not before or before == settings.served_model_name:
        return
    yield (
        f"it served the model {before} until now; from now on {settings.served_model_name}, and "
        "clients that ask for the former get 404"
    )
