"""Room on the disk for a runtime beside others: an upgrade is refused when it is planned, not when
half of it is unpacked. The host looks again before it builds (files/fleet_host).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.locked_wheels import pinned_versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.planning.wanted import Environment


def room_findings(
    host: str, root: str, snapshot: Mapping[str, Any], runtime: Environment | None
) -> tuple[Finding, ...]:
    """A refusal when the runtime that is to be built does not fit. Empty when there is no other
    runtime (preflight looks at that) and where the disk was not read."""
    disk = (snapshot.get("disk") or {}).get("llm_root") or {}
    free = disk.get("free_bytes")
    others = {
        path: record
        for path, record in (snapshot.get("environments") or {}).items()
        if path.startswith(f"{root}/runtimes/") and isinstance(record, dict)
    }
    if runtime is None or not others or not isinstance(free, int):
        return ()
    share = _present_share(runtime, others)
    needed = int(runtime.job["bytes_needed"] * (1 - share))
    if free >= needed:
        return ()
    shared = f", {share:.0%} of it counted as there already" if share else ""
    return (
        Finding(
            "disk.runtime",
            "refuse",
            host,
            f"disk of {root}",
            f"{free / 1e9:.1f} GB are free, {runtime.label} needs {needed / 1e9:.1f} GB beside the "
            f"runtimes that are there{shared}",
            "remove releases that are not needed any more (`fleet runtime list` shows what uses "
            f"the room), mount a larger disk at {disk.get('path')}, or lower runtime.keep and "
            "engine.keep_releases",
        ),
    )


def _present_share(runtime: Environment, others: Mapping[str, Mapping[str, Any]]) -> float:
    """uv links what another runtime has in the same version: it takes no room again."""
    sizes: Mapping[str, int] = runtime.job.get("wheel_bytes") or {}
    if runtime.job["installer"] != "uv" or not sizes:
        return 0.0
    wanted = pinned_versions(runtime.job["requirements"])
    present = {
        pair
        for record in others.values()
        if record.get("installer") == "uv"
        for pair in (record.get("versions") or {}).items()
    }
    shared = sum(size for name, size in sizes.items() if (name, wanted.get(name)) in present)
    return shared / sum(sizes.values())
