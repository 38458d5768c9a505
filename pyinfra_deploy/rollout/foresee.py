"""What a rollout would do, in words and before anything is done: groups, differences, downtime.
Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.differences import release_differences

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyinfra_deploy.planning.host_plan import HostPlan
    from pyinfra_deploy.settings.schema import Settings


def engine_of(snapshot: Mapping[str, Any] | None, settings: Settings) -> Mapping[str, Any]:
    """The snapshot's section of the host's engine."""
    engines: Mapping[str, Any] = (snapshot or {}).get("engines") or {}
    return engines.get(settings.engine.name) or {}


def differences_of(plan: HostPlan, snapshot: Mapping[str, Any] | None) -> list[str]:
    """What the release that the settings ask for makes different; empty where none is switched."""
    if plan.release is None or not plan.go_live or plan.held is not None:
        return []
    assert plan.settings.runtime is not None
    after = {
        "vllm": plan.settings.runtime.vllm,
        "model": plan.release.model_path,
        "model_digest": plan.model_digest,
        "configuration": plan.release.configuration,
        "environment": plan.release.environment,
    }
    return release_differences(engine_of(snapshot, plan.settings), after)


def alike(lines: Mapping[str, Sequence[str]]) -> list[tuple[list[str], Sequence[str]]]:
    """Hosts of which the same lines are to be said, together, in their order."""
    found: dict[tuple[str, ...], list[str]] = {}
    for host, said in lines.items():
        found.setdefault(tuple(said), []).append(host)
    return [(hosts, said) for said, hosts in found.items()]


def group_lines(groups: Sequence[Sequence[str]], *, canary: bool) -> Iterator[str]:
    for number, hosts in enumerate(groups, start=1):
        word = "canary" if canary and number == 1 else f"group {number}"
        yield f"{word}: {', '.join(hosts)}"


def downtime(
    groups: Sequence[Sequence[str]],
    engines: Sequence[str],
    switched: Mapping[str, tuple[Settings, Mapping[str, Any]]],
) -> list[str]:
    """What clients will miss, where a group has every engine host of the inventory.

    engines: those. switched: of the hosts that serve and are to be switched, their settings and
    their engine's section of the snapshot.
    """
    lines = []
    for hosts in groups:
        if not engines or not set(engines) <= set(hosts) or not set(hosts) & set(switched):
            continue
        name = next(host for host in hosts if host in switched)
        settings, engine = switched[name]
        only = f"{name} is the only engine host" if len(engines) == 1 else (
            f"{', '.join(hosts)} are all engine hosts, and go at once"
        )  # fmt: skip
        parts = [
            f"draining (at most {settings.engine.drain_seconds} s)",
            f"the start of the engine ({_start(engine)})",
        ]
        if settings.rollout.soak_seconds:
            parts.append(f"the soak ({settings.rollout.soak_seconds} s)")
        lines.append(
            f"DOWNTIME: {only}: new requests are answered 503 with Retry-After during "
            f"{', '.join(parts[:-1])} and {parts[-1]}"
        )
    return lines


def _start(engine: Mapping[str, Any]) -> str:
    golive = engine.get("golive")
    took = golive.get("start_seconds") if isinstance(golive, dict) else None
    return f"the last one took {took:.0f} s" if isinstance(took, int | float) else "as long as it"\
        " takes"  # fmt: skip
