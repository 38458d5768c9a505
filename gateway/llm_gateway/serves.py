"""What an engine on another host runs now, as the door of its host says with /ready.

The configuration has what the settings ask for. An engine whose turn in a rollout has not come, or
that was rolled back, runs something else, so its own word counts before the configuration's. A
door that says nothing of it, as an older one, leaves the configuration in force.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .config import BackendConfig

_MAX_NAME = 512


@dataclass(frozen=True)
class Serves:
    """max_model_len: in tokens; None where its release leaves it to the engine. release: two that
    differ in nothing else are two all the same, whose lengths may differ."""

    release: str
    model: str
    max_model_len: int | None
    priority_scheduling: bool


def read_serves(document: Mapping[str, Any]) -> Serves | None:
    """From /ready's document; None where it does not say, or not in a form that is understood."""
    told = document.get("serves")
    if not isinstance(told, dict):
        return None
    release, model = told.get("release"), told.get("model")
    length, priority = told.get("max_model_len"), told.get("priority_scheduling")
    if not isinstance(release, str) or not isinstance(model, str) or not isinstance(priority, bool):
        return None
    whole = isinstance(length, int) and not isinstance(length, bool) and length > 0
    if not 0 < len(model) <= _MAX_NAME or not (length is None or whole):
        return None
    return Serves(release, model, length, priority)


def in_force(config: BackendConfig, serves: Serves | None) -> BackendConfig:
    """The configuration of an engine with what it says itself. Aliases stay its aliases, whatever
    its model is called: who uses them notices nothing of a new name."""
    if serves is None:
        return config
    known = serves.model in config.models
    return replace(
        config,
        models=config.models if known else (serves.model,),
        aliases=config.aliases
        if known
        else tuple((alias, serves.model) for alias, _ in config.aliases if alias != serves.model),
        max_model_len=serves.max_model_len,
        priority_scheduling=serves.priority_scheduling,
    )
