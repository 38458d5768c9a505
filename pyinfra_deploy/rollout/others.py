"""Other rollouts of an inventory, from what `rollout status` of its hosts says: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.operations.run import is_dead_run_of_this_machine

if TYPE_CHECKING:
    from collections.abc import Mapping

RUNNING, PAUSED, INTERRUPTED = "running", "paused", "interrupted"
# What may be gone on with (files/fleet_host/rollout.py, and the words above).
UNFINISHED = (RUNNING, PAUSED, INTERRUPTED)


def is_unfinished(answer: Mapping[str, Any]) -> bool:
    return (answer.get("rollout") or {}).get("state") in UNFINISHED


def at_work(answer: Mapping[str, Any], inventory: str) -> bool:
    """Whether a rollout of the inventory has the host now. One that was killed has not, where this
    machine can tell, and neither has one whose lock has ended or was taken away."""
    rollout, lease = answer.get("rollout") or {}, answer.get("lease") or {}
    return bool(
        rollout.get("state") == RUNNING
        and rollout.get("inventory", inventory) == inventory
        and answer.get("live")
        # A deploy's lock, where the rollout was killed before, is none of it.
        and all(lease.get(key) == rollout.get(key) for key in ("owner", "machine"))
        and not is_dead_run_of_this_machine(lease)
    )


def in_words(answer: Mapping[str, Any]) -> str:
    rollout = answer["rollout"]
    return f"{rollout.get('kind')} {rollout.get('id')} of {rollout.get('owner')}"
