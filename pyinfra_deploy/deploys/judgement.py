"""The same foresight in the deploy as in `fleet plan`: read the hardware, judge, refuse."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.facts.assemble import assemble
from pyinfra_deploy.facts.collected import TIMEOUT_SECONDS, CollectedOutputs
from pyinfra_deploy.facts.hardware import Hardware
from pyinfra_deploy.operations import packing
from pyinfra_deploy.operations.model_source import known_model, model_is_on_host
from pyinfra_deploy.planning.foresight import Foresight, foresee
from pyinfra_deploy.planning.hardware_findings import uses_gpus
from pyinfra_deploy.planning.start_figures import recorded_start

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra.api import Host

    from pyinfra_deploy.settings import Settings


def judge(
    host: Host,
    settings: Settings,
    snapshot: Mapping[str, Any],
    fleet: Mapping[str, Any],
    planned: str | None,
) -> Foresight | None:
    """Foresee one engine host. None when it could not be read, which pyinfra has said. planned:
    the release that the settings ask for."""
    outputs = {}
    if uses_gpus(settings):
        outputs = host.get_fact(CollectedOutputs, mask_uuids=False, _timeout=TIMEOUT_SECONDS)
        if not outputs:
            return None
    assert settings.model is not None
    assert settings.runtime is not None
    model = known_model(settings.model, Path(fleet["root"]))
    # A host that computes on its CPU is not read for its GPUs, so nothing of it is missing.
    hardware = assemble(host.name, outputs, settings.llm_root) if outputs else bare(host, snapshot)
    return foresee(
        host.name,
        settings,
        hardware,
        model,
        packing.lock_text(settings.runtime.lock),
        datetime.datetime.now(datetime.UTC).date(),
        model_on_host=model_is_on_host(settings, snapshot, model.locked.lock),
        start=recorded_start(snapshot, settings.engine.name),
        planned=planned,
        sources=snapshot.get("driver"),
    )


def bare(host: Host, snapshot: Mapping[str, Any]) -> Hardware:
    """What the snapshot tells of a host whose GPUs nobody asked for."""
    disk = (snapshot.get("disk") or {}).get("llm_root") or {}
    memory = snapshot.get("memory") or {}
    return Hardware(
        host.name,
        cpu_count=snapshot.get("cpus"),
        memory_total_bytes=memory.get("total_bytes"),
        memory_available_bytes=memory.get("available_bytes"),
        disk_free_bytes=disk.get("free_bytes"),
    )
