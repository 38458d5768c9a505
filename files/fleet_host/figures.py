"""What an engine said of its memory when a release went live, for plans of the same release.

engines/ENGINE/start.json: {release, gpus, lines, when}. Beside the releases, which never change.
The lines are kept as they are: their wording differs between versions, and the control machine
reads them (pyinfra_deploy/planning/engine_log.py).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from . import durable, engine, events

# Weights, what is left for the cache, how much that holds, graphs, and the version.
TELLING = re.compile(
    r"KV cache|loading (?:model )?(?:weights )?took|model weights take|Maximum concurrency"
    r"|# (?:GPU|CUDA|CPU) blocks|Graph capturing finished"
    r"|vLLM (?:(?:API )?server |engine )?version|LLM engine \(v",
    re.IGNORECASE,
)
# Each of sixteen workers says three of them.
MOST_LINES = 64
LONGEST_LINE = 400
# A start with eight workers and progress bars logs a few hundred lines.
LINES_READ = 20000
GPUS = Path("/proc/driver/nvidia/gpus")


def keep(name: str, release: str, invocation: str, unit: str, since_epoch_seconds: float) -> bool:
    """Write start.json for a release that serves; whether its log had anything to keep.

    What an earlier release said goes, also when this one says nothing.
    """
    path = engine.home(name) / "start.json"
    lines = engine.journal(unit, [invocation], since_epoch_seconds, LINES_READ)
    told = [line[:LONGEST_LINE] for line in lines if TELLING.search(line)][:MOST_LINES]
    if not told:
        durable.remove_file(path)
        return False
    document: dict[str, Any] = {
        "release": release,
        "gpus": gpu_models(),
        "lines": told,
        "when": events.utc_now(),
    }
    durable.write_json(path, document)
    return True


def gpu_models() -> list[str]:
    """Of the host's cards, as the kernel module lists them: no program that could hang."""
    found = []
    for path in sorted(GPUS.glob("*/information")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name == "Model":
                found.append(value.strip())
    return found
