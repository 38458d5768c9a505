"""Where planning takes a model's documents from: the hub or a directory, each read once a run."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.facts import hub_model
from pyinfra_deploy.planning import wanted
from pyinfra_deploy.planning.foresight import KnownModel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyinfra_deploy.facts.model_documents import ModelDocuments
    from pyinfra_deploy.settings.schema import Model, Settings


@cache
def model_of_hub(model: Model, root: Path) -> KnownModel:
    """What the hub says of the model; kept below the repository's root for the next run."""
    return _known(hub_model.fetch(model, root / ".fleet" / "models"))


@cache
def model_of_directory(directory: Path) -> KnownModel:
    """What --model-config DIR says of it."""
    return _known(hub_model.read_directory(directory))


def _known(documents: ModelDocuments) -> KnownModel:
    return KnownModel(**vars(documents))


def model_is_on_host(settings: Settings, snapshot: Mapping[str, Any] | None) -> bool:
    """Whether the model is published on the host with every file as recorded."""
    if snapshot is None or settings.model is None:
        return False
    revisions = (snapshot.get("models") or {}).get(wanted.model_slug(settings)) or {}
    found = revisions.get(settings.model.revision)
    return isinstance(found, dict) and bool(found.get("intact"))
