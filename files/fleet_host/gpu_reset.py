"""Resetting GPUs: only where no request comes, no engine runs and no process has one open.

nvidia-smi refuses by itself while a card is open ("In use by another client", nvidia-smi(1),
--gpu-reset); what keeps cards open for good (persistence, our fans) is stopped for it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from . import durable, engine, events, fields, layout, programs, snapshot, systemctl
from .errors import HostError, SpecError

RESET_SECONDS = 300.0
LIST_SECONDS = 120.0
# Ours, NVIDIA's, and what watches cards; stopped while cards are reset, in the order of use.
KEEPERS = (
    "llm-fans.service",
    "nvidia-dcgm.service",
    "dcgm-exporter.service",
    "llm-persistence.service",
    "nvidia-persistenced.service",
)
DEVICE = re.compile(r"/dev/nvidia(?:\d+|ctl|-uvm|-uvm-tools|-modeset)")
FIXES = programs.Fixes(
    absent="Install the driver.",
    hangs="The driver hangs: reboot the host (runbook upgrade-driver does it drained).",
    fails="Where the reset is not supported or does not help, reboot the host.",
)


def holders(request: dict[str, Any]) -> dict[str, Any]:
    """`gpu holders` {} -> {holders: [{pid, name}], gpus: [one line each]}."""
    del request
    return {"holders": open_by(Path("/proc")), "gpus": known_to_driver(Path("/proc")) or _listed()}


def known_to_driver(proc: Path) -> list[str]:
    """The driver's cards in the order of their bus, as nvidia-smi numbers them: without asking a
    card, since nvidia-smi hangs on the very one that is to be reset."""
    places = sorted((proc / "driver/nvidia/gpus").glob("*"))
    return [f"GPU {number}: {place.name}" for number, place in enumerate(places)]


def _stopped_path() -> Path:
    """Where it is kept what was stopped: in memory, since a boot starts all of it again."""
    return layout.run_root() / "llm" / "gpu-reset.json"


def start_stopped() -> list[str]:
    """What a reset that was killed has left stopped is started again; which that was."""
    found = durable.read_json(_stopped_path())
    left = [unit for unit in found if unit in KEEPERS] if isinstance(found, list) else []
    for unit in reversed(left):
        systemctl.call(["start", "--no-block", unit])
    _stopped_path().unlink(missing_ok=True)
    return left


def open_by(proc: Path) -> list[dict[str, Any]]:
    """Processes that have a GPU's device file open, but for those that KEEPERS run."""
    found = []
    for directory in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            links = [os.readlink(path) for path in (directory / "fd").iterdir()]  # noqa: PTH115
            name = (directory / "comm").read_text().strip()
            group = (directory / "cgroup").read_text()
        except OSError:
            continue  # it has ended
        if any(DEVICE.fullmatch(link) for link in links) and not any(
            f"/{unit}" in group for unit in KEEPERS
        ):
            found.append({"pid": int(directory.name), "name": name})
    return found


def reset(request: dict[str, Any]) -> dict[str, Any]:
    """`gpu reset` {engine, by, gpus: [index]} -> {reset, gpus}. HostError unless the host is
    drained by hand, its engine is down, and no process has a card open."""
    name, by = engine.name_of(request), fields.text(request, "by")
    gpus = request.get("gpus")
    if not isinstance(gpus, list) or not gpus or not all(type(one) is int for one in gpus):
        raise SpecError(
            f"the spec's 'gpus' is {gpus!r}", "it must be numbers of GPUs, as nvidia-smi has them.",
            "Correct it.",
        )  # fmt: skip
    _refuse_in_service(name)
    start_stopped()
    stopped = [unit for unit in KEEPERS if _runs(unit)]
    _stopped_path().parent.mkdir(parents=True, exist_ok=True)
    durable.write_json(_stopped_path(), stopped)
    try:
        for unit in stopped:
            systemctl.call(["stop", unit])
        left = open_by(Path("/proc"))
        if left:
            raise HostError(
                "the GPUs are still open",
                "; ".join(f"process {one['pid']} ({one['name']})" for one in left)
                + ": a reset would take them away under it.",
                "End these processes, or wait for them, and run again.",
            )
        command = ["nvidia-smi", "--gpu-reset", "-i", ",".join(map(str, gpus))]
        programs.output_of(command, RESET_SECONDS, FIXES)
    finally:
        start_stopped()
    events.record("GPUs reset", by, gpus=gpus)
    return {"reset": gpus, "gpus": _listed()}


def _refuse_in_service(name: str) -> None:
    flag = snapshot.drain_flag(str(engine.drain_flag(name)))
    if flag is None or flag.get("by") == engine.DRAINED_BY_GO_LIVE:
        raise HostError(
            "this host takes requests, and its GPUs are not reset",
            f"it is not drained: there is no {engine.drain_flag(name)} of an operator's.",
            "fleet drain INVENTORY HOST --why ..., or the runbook reset-gpu, which does.",
        )
    unit = f"llm-engine@{name}.service"
    if _runs(unit):
        raise HostError(
            "this host's engine runs, and its GPUs are not reset",
            f"{unit} is not down.",
            "The runbook reset-gpu stops it first.",
        )


def _runs(unit: str) -> bool:
    return systemctl.show(unit, ["ActiveState"])["ActiveState"] in (
        "active", "activating", "reloading", "deactivating",
    )  # fmt: skip


def _listed() -> list[str]:
    return programs.output_of(["nvidia-smi", "-L"], LIST_SECONDS, FIXES).strip().splitlines()
