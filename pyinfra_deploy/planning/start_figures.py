"""What the running engine said of its memory, for a plan of the very release that it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.engine_log import EngineFigures, read_engine_log
from pyinfra_deploy.planning.gpu_table import bare_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyinfra_deploy.facts.hardware import Gpu


def recorded_start(snapshot: Mapping[str, Any] | None, engine: str) -> Mapping[str, Any] | None:
    """The host's start.json, when it is of the release that is current. None otherwise."""
    engines = (snapshot or {}).get("engines")
    state = engines.get(engine) if isinstance(engines, dict) else None
    start = state.get("start") if isinstance(state, dict) else None
    if not isinstance(state, dict) or not isinstance(start, dict):
        return None
    lines = start.get("lines")
    usable = isinstance(lines, list) and start.get("release") == state.get("current")
    return start if usable and start.get("release") else None


def figures_of(
    start: Mapping[str, Any] | None, planned: str | None, gpus: Sequence[Gpu]
) -> EngineFigures | None:
    """The engine's figures, when they are of the planned release and of GPUs like these. A start
    that named no GPU (a kernel module without /proc) is of these."""
    if start is None or planned is None or start.get("release") != planned:
        return None
    then = {bare_name(str(name)) for name in start.get("gpus") or ()}
    if then and not {bare_name(gpu.name) for gpu in gpus} <= then:
        return None
    figures = read_engine_log(str(line) for line in start["lines"])
    return figures if figures.available_bytes is not None else None
