"""Releases that a rollout has taken back on this host: a deploy without gates must not bring them.

engines/ENGINE/rejected.json: {RELEASE: {why, when, run}}. One is tried again only behind gates, by
`fleet rollout`; once it has gone live it is not rejected any more. Settings that yield another
release are not concerned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import durable, engine, events
from .errors import HostError

if TYPE_CHECKING:
    from pathlib import Path

# The oldest are forgotten: their releases are pruned long before.
MOST = 20
WHY_CHARACTERS = 500


def path(name: str) -> Path:
    return engine.home(name) / "rejected.json"


def read(name: str) -> dict[str, Any]:
    return durable.read_object(path(name)) or {}


def keep(name: str, release: str, why: str, run: str) -> None:
    entry = {"why": why[:WHY_CHARACTERS], "when": events.utc_now(), "run": run}
    others = {one: what for one, what in read(name).items() if one != release}
    kept = dict([*others.items(), (release, entry)][-MOST:])
    durable.write_json(path(name), kept, mode=0o644)


def keep_asked(name: str, spec: dict[str, Any]) -> None:
    """`rejects` {release, why} of a spec whose go-live undoes what a check after it found bad."""
    asked = spec.get("rejects")
    if isinstance(asked, dict):
        release = engine.name_of(asked, "release")
        keep(name, release, str(asked.get("why") or ""), str(spec.get("run") or ""))


def end(name: str, release: str) -> None:
    """It has gone live."""
    there = read(name)
    if there.pop(release, None) is not None:
        durable.write_json(path(name), there, mode=0o644)


def refuse(name: str, release: str) -> None:
    """HostError for a release that was taken back."""
    entry = read(name).get(release)
    if not isinstance(entry, dict):
        return
    raise HostError(
        f"release {release} of engine {name} was taken back on this host",
        f"at {entry.get('when')}: {entry.get('why')}",
        "Change the settings; or, if the cause is mended, try it again behind its gates: fleet "
        "rollout INVENTORY.",
    )
