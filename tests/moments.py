"""Random moments of kills and cuts: FLEET_SEED repeats a run, FLEET_KILLS says how many."""

from __future__ import annotations

import os
import random
import time

KILLS = int(os.environ.get("FLEET_KILLS", "2"))
SEED = int(os.environ.get("FLEET_SEED", time.time_ns() % 1_000_000))


def moment(number: int, earliest: float, latest: float) -> float:
    """The number-th one, and a line with the seed, which pytest shows beside a failure."""
    found = random.Random(SEED + number).uniform(earliest, latest)  # noqa: S311 - no secret
    print(f"kill {number} of FLEET_SEED={SEED}: at {found:.3f}")
    return found
