"""Releases that a rollout has taken back on a host: a deploy has no gates, and refuses them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ID = "engine.rejected"


def rejected_findings(
    host: str, engine: str, snapshot: Mapping[str, Any], plan: Mapping[str, Any]
) -> Iterator[Finding]:
    """From the snapshot's engines.ENGINE.rejected: {RELEASE: {why, when}}. A warning, which
    `without_gates` makes a refusal. plan: as plan_engine gives it."""
    seen = (snapshot.get("engines") or {}).get(engine) or {}
    wanted = plan["release"].id_with(plan["model_digest"]) if plan["model_digest"] else None
    wanted = plan["held"].kept if plan["held"] is not None else wanted
    entry = (seen.get("rejected") or {}).get(wanted)
    if not isinstance(entry, dict) or seen.get("current") == wanted:
        return
    yield Finding(
        "engine.rejected",
        "warn",
        host,
        f"engine {engine}",
        f"release {wanted}, which the settings ask for, was taken back here at "
        f"{entry.get('when') or 'an unknown time'}: {entry.get('why') or 'no reason is recorded'}",
        "change the settings; or, if the cause is mended, try it again behind its gates: fleet "
        f"rollout INVENTORY --only {host}",
        source="docs/rollout.md",
    )


def without_gates(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """What a deploy that is no rollout's refuses."""
    return tuple(replace(one, severity="refuse") for one in findings if one.id == ID)
