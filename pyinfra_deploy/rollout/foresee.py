"""What a rollout would do, in words and before anything is done: groups, differences, downtime.
Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.differences import release_differences

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyinfra_deploy.planning.host_plan import HostPlan
    from pyinfra_deploy.rollout.serving import Serving
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
        "runtime": plan.release.runtime.path,
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


def canaries(groups: Sequence[Sequence[str]], coming: Mapping[str, str]) -> list[bool]:
    """Of each group, whether it is a canary while nothing fails: its model's first, and the very
    first. coming: {host: model}."""
    seen: set[str | None] = set()
    found = []
    for number, hosts in enumerate(groups):
        model = coming.get(hosts[0]) if hosts else None
        found.append(number == 0 or (model is not None and model not in seen))
        seen |= {coming.get(host) for host in hosts}
    return found


def group_lines(
    groups: Sequence[Sequence[str]], *, canary: bool, coming: Mapping[str, str] | None = None
) -> Iterator[str]:
    several = len(set((coming or {}).values())) > 1
    firsts = canaries(groups, coming or {})
    for number, (hosts, first) in enumerate(zip(groups, firsts, strict=True), start=1):
        model = (coming or {}).get(hosts[0]) if hosts else None
        of_model = f" of {model}" if several and model else ""
        word = f"canary{of_model}" if canary and first else f"group {number}"
        yield f"{word}: {', '.join(hosts)}"


def downtime(
    groups: Sequence[Sequence[str]],
    serving: Serving,
    switched: Mapping[str, tuple[Settings, Mapping[str, Any]]],
) -> list[str]:
    """What clients will miss: where a group has the last host that serves a model to them.

    switched: of the hosts that serve and are to be switched, their settings and their engine's
    section of the snapshot.
    """
    lines = []
    for hosts in groups:
        for model, name in serving.taken_away(hosts).items():
            if name not in switched:
                continue
            settings, engine = switched[name]
            parts = [
                f"draining (at most {settings.engine.drain_seconds} s)",
                f"the start of the engine ({_start(engine)})",
            ]
            if settings.rollout.soak_seconds:
                parts.append(f"the soak ({settings.rollout.soak_seconds} s)")
            lines.append(
                f"DOWNTIME: {name} is the only host that serves {model}{_others(serving, model)}: "
                "new requests are answered 503 with Retry-After during "
                f"{', '.join(parts[:-1])} and {parts[-1]}"
            )
        serving = serving.switched(hosts)
    return lines


def _others(serving: Serving, model: str) -> str:
    out = [host for host, one in serving.now.items() if one == model and host in serving.out]
    return f" ({', '.join(out)} does not: drained, down or not reached)" if out else ""


def _start(engine: Mapping[str, Any]) -> str:
    golive = engine.get("golive")
    took = golive.get("start_seconds") if isinstance(golive, dict) else None
    return f"the last one took {took:.0f} s" if isinstance(took, int | float) else "as long as it"\
        " takes"  # fmt: skip
