"""A hold: what a rollback leaves, so that the next deploy does not bring back what was taken back.

engines/ENGINE/hold.json: {rejected: [release], kept, served_model_name, who, why, when, former}.
former: the hold before it, for a rollback that is given up; absent where there was none. A deploy
whose settings yield one of the rejected releases leaves the engine at `kept` and says so. It ends
by `hold end` (fleet unhold), or when another release goes live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import binding, durable, engine, events, fields
from .errors import HostError

if TYPE_CHECKING:
    from pathlib import Path


def path(name: str) -> Path:
    return engine.home(name) / "hold.json"


def read(name: str) -> dict[str, Any] | None:
    document = durable.read_json(path(name))
    return document if isinstance(document, dict) else None


def begin(request: dict[str, Any]) -> dict[str, Any]:
    """`hold begin` {engine, rejected: [release], kept, who, why} -> {changed, hold}.

    kept: a release on this host. Written before the rollback's go-live: a rollback that is killed
    in between leaves a hold to the release that is then still to go live, and the deploy does that.
    """
    name, kept = engine.name_of(request), engine.name_of(request, "kept")
    who, why = fields.text(request, "who"), fields.text(request, "why")
    rejected = sorted({*fields.texts(request, "rejected")} - {kept})
    if not engine.on_disk(name, kept):
        raise HostError(
            f"release {kept} of engine {name} is not on this host",
            f"{engine.release_directory(name, kept)} does not exist, or not in full.",
            "Roll back to one of those that are: fleet status shows them.",
        )
    binding.make_room(name)
    there = read(name)
    if there is not None and (there.get("kept"), there.get("rejected")) == (kept, rejected):
        return {"changed": False, "hold": there}
    document = durable.read_json(engine.release_directory(name, kept) / "release.json") or {}
    hold = {
        "rejected": rejected,
        "kept": kept,
        "served_model_name": document.get("served_model_name"),
        "who": who,
        "why": why,
        "when": events.utc_now(),
    }
    if there is not None:
        hold["former"] = {key: value for key, value in there.items() if key != "former"}
    durable.write_json(path(name), hold, mode=0o644)
    events.record("held", who, engine=name, kept=kept, rejected=rejected, why=why)
    return {"changed": True, "hold": hold}


def end(request: dict[str, Any]) -> dict[str, Any]:
    """`hold end` {engine, who, give_up} -> {changed, hold: what it was, or null}. give_up: of a
    rollback that failed; the hold that it found there holds again."""
    name, who = engine.name_of(request), fields.text(request, "who")
    there = read(name)
    if not path(name).exists():
        return {"changed": False, "hold": None}
    former = (there or {}).get("former") if request.get("give_up") is True else None
    if isinstance(former, dict):
        durable.write_json(path(name), former, mode=0o644)
    else:
        durable.remove_file(path(name))
        former = None
    again = {"holds_again": former.get("kept")} if former is not None else {}
    events.record("hold ended", who, engine=name, kept=(there or {}).get("kept"), **again)
    return {"changed": True, "hold": there}


def refuse(name: str, release: str) -> None:
    """HostError for a release that a hold rejects: a deploy that did not know of it must not."""
    there = read(name)
    if there is None or release not in there.get("rejected", []):
        return
    raise HostError(
        f"release {release} of engine {name} is held back",
        f"{there.get('who')} rolled this host back to {there.get('kept')} at {there.get('when')}: "
        f"{there.get('why')}.",
        "If it is to come after all: fleet unhold INVENTORY, then run the same command again.",
    )


def end_for(name: str, release: str) -> None:
    """A release has gone live: a hold that is about others is over."""
    there = read(name)
    if there is None or release == there.get("kept") or release in there.get("rejected", []):
        return
    durable.remove_file(path(name))
    events.record("hold ended", engine=name, kept=there.get("kept"), by_release=release)
