"""What a go-live is asked for: its job's spec, read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import engine, fields, fitness, gates, probe, proof
from .health import Patience
from .start_time import allowed_seconds


@dataclass(frozen=True)
class Wish:
    """What is asked for, from the job's spec."""

    engine: str
    release: str
    unit: str
    probe: probe.Probe
    patience: Patience
    drain_seconds: int
    enable: bool
    run: str
    proof: proof.Wanted | None = None
    fitness: fitness.Wanted | None = None
    ask_parser: bool = False
    gates: gates.Gates | None = None


def read_wish(spec: dict[str, Any]) -> Wish:
    asked = spec.get("probe")
    asked = dict(asked) if isinstance(asked, dict) else {}
    name = engine.name_of(spec)
    return Wish(
        engine=name,
        release=engine.name_of(spec, "release"),
        unit=fields.text(spec, "unit", f"llm-engine@{name}.service"),
        probe=probe.Probe(
            path=fields.text(asked, "path", "/v1/completions"),
            model=fields.text(asked, "model"),  # "": the release's own
            prompt=fields.text(asked, "prompt", "1, 2, 3,"),
            max_tokens=fields.whole(asked, "max_tokens", 4),
        ),
        patience=Patience(
            start_timeout_seconds=fields.seconds(
                spec,
                "start_timeout_seconds",
                allowed_seconds(name, engine.name_of(spec, "release")),
            ),
            stall_timeout_seconds=fields.seconds(spec, "stall_timeout_seconds"),
            poll_seconds=fields.seconds(spec, "poll_seconds", 1.0),
        ),
        drain_seconds=fields.whole(spec, "drain_seconds"),
        enable=spec.get("enable", True) is True,
        run=fields.text(spec, "run", ""),
        proof=proof.read_wanted(spec),
        fitness=fitness.read_wanted(spec),
        ask_parser=spec.get("ask_parser") is True,
        gates=gates.read_gates(spec),
    )
