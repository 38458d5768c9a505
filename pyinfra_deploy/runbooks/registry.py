"""Which runbooks there are."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyinfra_deploy.runbooks.book import Runbook

NAMES = (
    "emergency-stop", "take-out", "put-in", "reset-gpu", "repair-model", "upgrade-driver",
    "rotate-keys", "rotate-certificates", "add-host", "replace-host", "collect-diagnostics",
)  # fmt: skip


def runbook(name: str) -> Runbook:
    """KeyError for a name that is none."""
    if name not in NAMES:
        raise KeyError(name)
    module = importlib.import_module(f"pyinfra_deploy.runbooks.{name.replace('-', '_')}")
    found: Runbook = module.RUNBOOK
    return found
