"""A host that somebody has taken out of service by hand: easily forgotten, so it is said."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# files/fleet_host/engine.py, DRAINED_BY_GO_LIVE: its own flag goes with the go-live.
BY_GO_LIVE = "go-live"


def drain_findings(host: str, engine: str, snapshot: Mapping[str, Any]) -> Iterator[Finding]:
    """From the snapshot's engines.ENGINE.drained: {by, reason, since}, since in seconds of Unix
    time; what nobody recorded is null."""
    drained = ((snapshot.get("engines") or {}).get(engine) or {}).get("drained")
    if not isinstance(drained, dict) or drained.get("by") == BY_GO_LIVE:
        return
    by, reason, since = (drained.get(key) for key in ("by", "reason", "since"))
    message = "this host is drained: Nginx answers new requests 503, and a deploy leaves it so"
    yield Finding(
        "engine.drained",
        "warn",
        host,
        f"engine {engine}",
        f"{message}. Since {_moment(since)}, by {by or 'somebody who left no name'}: "
        f"{reason or 'no reason is recorded'}",
        f"when it may serve again: fleet undrain INVENTORY {host} (or sudo rm "
        f"/run/llm/drain/{engine} on the host)",
        evidence=f"/run/llm/drain/{engine} exists",
        source="docs/bad-days.md",
    )


def stopped_findings(host: str, engine: str, snapshot: Mapping[str, Any]) -> Iterator[Finding]:
    """From the snapshot's engines.ENGINE.stopped: {who, why, when}; an unreadable one counts."""
    stopped = ((snapshot.get("engines") or {}).get(engine) or {}).get("stopped")
    if not isinstance(stopped, dict):
        return
    who, why, when = (stopped.get(key) for key in ("who", "why", "when"))
    yield Finding(
        "engine.stopped",
        "refuse",
        host,
        f"engine {engine}",
        f"somebody has stopped it by hand, and nothing starts it. Since {when or 'an unknown time'}"
        f", by {who or 'somebody who left no name'}: {why or 'no reason is recorded'}",
        f"when it may run again: fleet runbook run INVENTORY put-in {host}; until then leave it "
        f"out: --exclude {host}",
        evidence=f"engines/{engine}/stopped.json exists",
        source="docs/runbooks.md",
    )


def _moment(since: object) -> str:
    if isinstance(since, bool) or not isinstance(since, int | float):
        return "an unknown time"
    try:
        moment = datetime.datetime.fromtimestamp(since, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return "an unknown time"
    return f"{moment:%Y-%m-%d %H:%M} UTC"
