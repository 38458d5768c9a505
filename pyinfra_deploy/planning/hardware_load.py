"""Who holds GPU memory: engines of ours, and what is in their way."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyinfra_deploy.planning.engine_choice import parse_version, read_choice
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.gpu_table import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyinfra_deploy.facts.hardware import Gpu, GpuProcess, Hardware
    from pyinfra_deploy.settings.schema import Settings

# The proof's too: a go-live goes on when its run is killed, and the next run reads the host then.
_OURS = re.compile(r"llm-(?:engine|golive|proof)@[^/]*\.service")
_SOURCE = "vLLM does not start when less than gpu-memory-utilization of a GPU's memory is free"


def load_findings(hardware: Hardware, settings: Settings) -> Iterator[Finding]:
    """An orphan that leaves too little is refused, a small one warned of. Memory that nobody in the
    process list holds counts only where no engine of ours runs. A process whose unit was not found
    out may be our own, so it is never refused."""
    choice, _ = read_choice(settings.engine.args)
    vllm = settings.runtime.vllm if settings.runtime else None
    share = choice.utilization_for(parse_version(vllm))
    blocked: list[Gpu] = []
    present: list[Gpu] = []
    unexplained: list[Gpu] = []
    unknown: list[Gpu] = []
    for gpu in hardware.gpus:
        foreign = [process for process in gpu.processes if is_foreign(process)]
        others = [process for process in gpu.processes if not is_foreign(process)]
        held = sum(process.used_memory_mib or 0 for process in foreign)
        if foreign:
            short = _is_short(gpu, held or (0 if others else gpu.memory_used_mib or 0), share)
            (blocked if short else present).append(gpu)
        elif not others and _is_short(gpu, gpu.memory_used_mib or 0, share):
            unexplained.append(gpu)
        if any(process.unit is None for process in others):
            unknown.append(gpu)
    if blocked:
        yield Finding(
            "gpu.orphan-memory",
            "refuse",
            hardware.host,
            named(blocked),
            "processes that belong to no engine of ours hold so much of the GPU's memory that the "
            f"engine cannot have its share ({share:g})",
            "find out whose they are (ps -o pid,user,lstart,cmd -p PID; systemctl status PID) and "
            f"end them: {_kill(blocked)}; workers of an engine that is gone may be killed",
            evidence=_holders(blocked),
            source=_SOURCE,
        )
    if present:
        yield Finding(
            "gpu.foreign-process",
            "warn",
            hardware.host,
            named(present),
            "processes that belong to no engine of ours use this GPU; what they take grows is "
            "missing to the engine",
            "move them to another host, or lower engine.args gpu-memory-utilization by their share",
            evidence=_holders(present),
            source=_SOURCE,
        )
    if unknown:
        yield Finding(
            "gpu.process-unknown",
            "warn",
            hardware.host,
            named(unknown),
            "processes use this GPU, and it was not found out whether they are an engine of ours",
            "look: systemctl status PID names the unit; what belongs to none may be in the way of "
            "the engine",
            evidence=_holders(unknown, lambda process: process.unit is None),
            source=_SOURCE,
        )
    if unexplained:
        yield Finding(
            "gpu.memory-in-use",
            "refuse",
            hardware.host,
            named(unexplained),
            "so much of the GPU's memory is taken that the engine cannot have its share "
            f"({share:g}), and nvidia-smi names nobody who holds it: a process in a container, or "
            "one that died and left it",
            "fuser -v /dev/nvidia* shows who has the GPU open; with nobody there reset the GPU "
            "(nvidia-smi -r) or reboot the drained host",
            evidence="; ".join(
                f"GPU {gpu.index}: {gpu.memory_used_mib} of {gpu.memory_total_mib} MiB used"
                for gpu in unexplained[:4]
            ),
            source=_SOURCE,
        )


def is_foreign(process: GpuProcess) -> bool:
    """In another unit than an engine's, or in none ("")."""
    return process.unit is not None and _OURS.search(process.unit) is None


def _is_short(gpu: Gpu, taken_mib: int, share: float) -> bool:
    """Whether what others hold leaves less than the engine's share. Unknown totals are not."""
    if gpu.memory_total_mib is None or gpu.memory_total_mib <= 0:
        return False
    usable = gpu.memory_total_mib - (gpu.memory_reserved_mib or 0)
    return usable - taken_mib < share * usable


def _holders(gpus: list[Gpu], which: Callable[[GpuProcess], bool] | None = None) -> str:
    lines = [
        f"GPU {gpu.index}: {_holder(process)}"
        for gpu in gpus
        for process in gpu.processes
        if (which or is_foreign)(process)
    ]
    return "; ".join(lines[:6]) + (f"; and {len(lines) - 6} more" if len(lines) > 6 else "")


def _holder(process: GpuProcess) -> str:
    used = process.used_memory_mib
    memory = "memory unknown" if used is None else f"{used} MiB"
    where = "unit unknown" if process.unit is None else process.unit or "no unit"
    return f"pid {process.pid} {process.name}, {memory}, {where}"


def _kill(gpus: list[Gpu]) -> str:
    pids = sorted({p.pid for gpu in gpus for p in gpu.processes if is_foreign(p)})
    return "kill " + " ".join(map(str, pids[:16]))
