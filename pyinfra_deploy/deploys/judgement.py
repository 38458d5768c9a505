"""The same foresight in the deploy as in `fleet plan`: read the hardware, judge, refuse."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.facts import hub_model
from pyinfra_deploy.facts.assemble import assemble
from pyinfra_deploy.facts.collected import TIMEOUT_SECONDS, CollectedOutputs
from pyinfra_deploy.operations import packing
from pyinfra_deploy.planning import wanted
from pyinfra_deploy.planning.foresight import Foresight, KnownModel, foresee
from pyinfra_deploy.planning.hardware_findings import uses_gpus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra.api import Host

    from pyinfra_deploy.facts.hub_model import ModelDocuments
    from pyinfra_deploy.settings import Settings


def known_model(documents: ModelDocuments, *, on_host: bool) -> KnownModel:
    """What planning takes of the documents."""
    return KnownModel(
        documents.config, documents.index, documents.listing, documents.problem, documents.source,
        on_host,
    )  # fmt: skip


def model_is_on_host(settings: Settings, snapshot: Mapping[str, Any] | None) -> bool:
    """Whether the model is published on the host with every file as recorded."""
    if snapshot is None or settings.model is None:
        return False
    revisions = (snapshot.get("models") or {}).get(wanted.model_slug(settings)) or {}
    found = revisions.get(settings.model.revision)
    return isinstance(found, dict) and bool(found.get("intact"))


def judge(
    host: Host, settings: Settings, snapshot: Mapping[str, Any], fleet: Mapping[str, Any]
) -> Foresight | None:
    """Foresee one engine host. None when it could not be read, which pyinfra has said."""
    outputs = {}
    if uses_gpus(settings):
        outputs = host.get_fact(CollectedOutputs, mask_uuids=False, _timeout=TIMEOUT_SECONDS)
        if not outputs:
            return None
    assert settings.model is not None
    assert settings.runtime is not None
    hardware = assemble(host.name, outputs, settings.llm_root)
    documents = hub_model.fetch(settings.model, Path(fleet["root"]) / ".fleet" / "models")
    model = known_model(documents, on_host=model_is_on_host(settings, snapshot))
    lock = packing.lock_text(settings.runtime.lock)
    today = datetime.datetime.now(datetime.UTC).date()
    return foresee(host.name, settings, hardware, model, lock, today)
