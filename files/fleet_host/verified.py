"""What was verified last through HTTPS: {llm_root}/state/verified.json, written by a verification
that passed.

It says what ran then, not what a run had changed: a deploy that finds something else running
verifies it, also when the run that brought it was killed before it came to that. The plan compares
it with the snapshot (pyinfra_deploy/planning/verification.py), so names and values are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import durable, engine, events, layout, snapshot

if TYPE_CHECKING:
    from pathlib import Path


def path() -> Path:
    return layout.llm_root() / "state" / "verified.json"


def what_runs(name: str | None) -> dict[str, Any]:
    """{release, binding} of the engine `name`, {gateway, shape, configuration, nginx, certificate};
    None for what is not there."""
    started = engine.read_started(name) if name else {}
    service = durable.read_json(layout.run_root() / "llm-gateway" / "started.json") or {}
    nginx = durable.read_json(layout.llm_root() / "state" / "nginx.json") or {}
    own = str(layout.etc_root() / "llm" / "tls" / "server.crt")
    certificate = snapshot.guarded(lambda: snapshot.certificate_state(own)) or {}
    return {
        "release": started.get("release"),
        "binding": started.get("binding"),
        "gateway": service.get("environment"),
        "shape": service.get("shape"),
        # In mode direct the service reads none, and has no shape.
        "configuration": snapshot.sha256_or_none(str(layout.llm_root() / "gateway/config.json"))
        if service.get("shape")
        else None,
        "nginx": nginx.get("loaded"),
        "certificate": certificate.get("fingerprint"),
    }


def keep(running: dict[str, Any]) -> None:
    """Note that `running`, read before the first check, has passed every one."""
    path().parent.mkdir(parents=True, exist_ok=True)
    durable.write_json(path(), {**running, "when": events.utc_now()})
