"""Pure: whether a job that runs does what is asked for, and, where it does not, in which fields."""

from __future__ import annotations

from typing import Any

# Who asked, which is no part of what is done: a run that was killed and the one after it ask for
# the same. At any depth, since a driver's request holds a go-live's.
ASKER = "run"
# Where an environment's files come from: the fleet's host that serves wheels may be another one
# than a run before, and each file is checked against the lock in any case.
# Of a pull: where its lock is written down, which changes no byte of what is pulled.
SOURCE = {"environment": ("wheelhouse",), "pull": ("provenance",)}
# A request for some of the wheels that are being downloaded is answered by that download. How the
# rest is tidied up afterwards follows from the wheels.
WHEELS, FOLLOWING = "wheels", ("wheels", "remove_others")


def differences(kind: str, running: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """The names of the fields in which the two specs ask for different work, sorted."""
    left_out = {ASKER, *SOURCE.get(kind, ())}
    if kind == WHEELS and _covers(running, asked):
        left_out |= set(FOLLOWING)
    names = (set(running) | set(asked)) - left_out
    return sorted(
        name
        for name in names
        if _without_asker(running.get(name)) != _without_asker(asked.get(name))
    )


def _without_asker(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_asker(item) for key, item in value.items() if key != ASKER}
    return value


def _covers(running: dict[str, Any], asked: dict[str, Any]) -> bool:
    there, wanted = running.get(WHEELS), asked.get(WHEELS)
    if not isinstance(there, list) or not isinstance(wanted, list):
        return False
    return all(wheel in there for wheel in wanted)
