"""Which unit a process on a GPU belongs to: "PID TAB NAME TAB CGROUP" lines of the collector."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyinfra_deploy.facts.values import digits

if TYPE_CHECKING:
    from pyinfra_deploy.facts.hardware import Gpu

_UNITS = (".service", ".socket", ".scope")


def parse_processes(text: str) -> dict[int, str]:
    """pid -> the systemd unit of its cgroup, "" for a process outside every unit."""
    found: dict[int, str] = {}
    for line in text.splitlines():
        cells = line.split("\t")
        pid = digits(cells[0]) if len(cells) == 3 else None
        if pid is not None:
            found[pid] = unit_of_cgroup(cells[2])
    return found


def unit_of_cgroup(path: str) -> str:
    """ "/system.slice/llm-engine@main.service" is "llm-engine@main.service"; the innermost unit
    counts (cgroups(7))."""
    units = [part for part in path.strip().split("/") if part.endswith(_UNITS)]
    return units[-1] if units else ""


def with_units(gpus: tuple[Gpu, ...], units: dict[int, str]) -> tuple[Gpu, ...]:
    return tuple(
        replace(
            gpu,
            processes=tuple(
                replace(process, unit=units.get(process.pid)) for process in gpu.processes
            ),
        )
        if gpu.processes
        else gpu
        for gpu in gpus
    )
