"""A deploy as one step of a rollout: the parent process says so through the environment.

FLEET_ROLLOUT holds JSON: {id, run: the parent's Run, outcomes: a directory of the parent's}. The
child's hosts are taken already, by the parent's run; it keeps their leases, and tells what became
of each host in DIRECTORY/HOST.json.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "FLEET_ROLLOUT"
# A waiting host of a large fleet waits for hours; the parent renews it long before.
TTL_SECONDS = 24 * 3600


@dataclass(frozen=True)
class RolloutRun:
    """run: who the parent is, as operations/run.py's Run."""

    id: str
    run: Mapping[str, Any]
    outcomes: Path

    def as_variable(self) -> str:
        return json.dumps({"id": self.id, "run": dict(self.run), "outcomes": str(self.outcomes)})

    def tell(self, host: str, document: Mapping[str, Any]) -> None:
        """What became of a host; the last word counts."""
        path = self.outcomes / f"{host}.json"
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(json.dumps(dict(document)), encoding="utf-8")
        temporary.replace(path)


@cache
def this_rollout() -> RolloutRun | None:
    """None in a run that is its own."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    found = json.loads(text)
    return RolloutRun(found["id"], found["run"], Path(found["outcomes"]))
