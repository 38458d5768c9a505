"""What the control machine brings along, as the planning sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.model_supply import NOT_LOCKED, LockedModel
from pyinfra_deploy.settings.mutual_tls import NOBODY, MutualTls

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from pyinfra_deploy.planning.wanted import ManagedFile


@dataclass(frozen=True)
class Artefacts:
    """What the control machine brings along, read once a run."""

    program_digest: str
    units: Mapping[str, ManagedFile]
    uv_lock: str
    modelscope_lock: str
    gateway_lock: str
    gateway_sources: Mapping[str, str]
    runtime_lock: str
    keys_serial: int
    ca_subject: str | None
    now: datetime
    conda_lock: str = ""
    # Names of the API keys that are not good for everything.
    limited_keys: tuple[str, ...] = ()
    model: LockedModel = NOT_LOCKED
    # Whether hosts get the model from each other: it is locked, and another host has the same.
    fan_out: bool = False
    # Of other hosts, behind this gateway: settings/remote_engines.py.
    engines: tuple[Mapping[str, Any], ...] = ()
    # What the host is between hosts: a gateway with a client's certificate, an engine's door.
    mutual_tls: MutualTls = NOBODY
