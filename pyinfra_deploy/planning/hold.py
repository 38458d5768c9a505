"""A hold: what a rollback has left on a host, and whether it is about what the settings ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class Hold:
    """kept: the release that stays; rejected: those that are not to come back by a deploy."""

    kept: str
    rejected: tuple[str, ...]
    served_model_name: str
    who: str
    why: str
    when: str


def read_hold(found: object) -> Hold | None:
    """From engines/ENGINE/hold.json (files/fleet_host/hold.py); None for what is none."""
    if not isinstance(found, dict) or not isinstance(found.get("kept"), str):
        return None
    rejected = found.get("rejected")
    texts = {key: str(found.get(key) or "") for key in ("who", "why", "when")}
    return Hold(
        kept=found["kept"],
        rejected=tuple(map(str, rejected)) if isinstance(rejected, list) else (),
        served_model_name=str(found.get("served_model_name") or ""),
        **texts,
    )


def applies(found: object, wanted: str | None) -> Hold | None:
    """The hold, while the settings yield a release that it rejects."""
    hold = read_hold(found)
    return hold if hold is not None and wanted in hold.rejected else None


def hold_findings(host: str, engine: str, plan: Mapping[str, Any]) -> Iterator[Finding]:
    """plan: as plan_engine gives it."""
    hold: Hold | None = plan["held"]
    if hold is None:
        return
    wanted = plan["release"].id_with(plan["model_digest"])
    yield Finding(
        "engine.held",
        "warn",
        host,
        f"engine {engine}",
        f"release {wanted}, which the settings ask for, is held back: {hold.kept} stays. Since "
        f"{hold.when or 'an unknown time'}, by {hold.who or 'somebody who left no name'}: "
        f"{hold.why or 'no reason is recorded'}",
        "change the settings, which ends it with the next deploy; or, if that release is to come "
        f"after all: fleet unhold INVENTORY --limit {host}",
        source="docs/rollout.md",
    )
