"""The gateway service's configuration, from the fleet's settings: who is behind it, and how.

The shape is gateway/llm_gateway's (its docstring has every field); a test lets the service read it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.body_limit import MIB, max_body_mb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyinfra_deploy.planning.hold import Hold
    from pyinfra_deploy.settings.gateway_section import Gateway
    from pyinfra_deploy.settings.schema import Settings

SCHEMA = 1
MTLS = "/etc/llm-gateway/mtls"
# The door answers it, from the drain flag and the engine's own state (llm-engine-door.conf.j2).
DOOR_READY = "/ready"
DEFAULT_CONCURRENT = 256


def service_text(
    groups: frozenset[str], settings: Settings, engines: Sequence[Any], held: Hold | None = None
) -> str | None:
    """The file's text; None where no service has one. engines: of other hosts, as
    settings/remote_engines.py has them. held: what stays live instead of what the settings ask for.
    """
    if "gateway" not in groups or settings.gateway is None or settings.gateway.mode == "direct":
        return None
    document = service_configuration(groups, settings, engines, held)
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def service_configuration(
    groups: frozenset[str], settings: Settings, engines: Sequence[Any], held: Hold | None = None
) -> dict[str, Any]:
    """The document of one gateway host, complete: every default of ours is written out."""
    gateway = settings.gateway
    assert gateway is not None
    backends = [_local(settings, gateway, held)] if "gpu" in groups else []
    backends += [_remote(one, gateway) for one in engines]
    tiers = {
        tier.name: {"weight": tier.weight, "priority": tier.priority} for tier in gateway.tiers
    }
    health, admission = gateway.health, gateway.admission
    return {
        "schema": SCHEMA,
        "backends": backends,
        "tiers": tiers,
        "default_tier": gateway.default_tier or gateway.tiers[0].name,
        "queue": {
            "max_waiting": gateway.queue.max_waiting,
            "max_wait_seconds": gateway.queue.max_wait_seconds,
        },
        "admission": {
            "max_body_bytes": max_body_mb(settings) * MIB,
            "body_seconds": admission.body_timeout_seconds,
            "count_tokens": admission.count_tokens,
            "tokenize_seconds": admission.count_timeout_seconds,
            "expose_tokenize": gateway.tokenize,
            "allowed_parameters": None
            if admission.allowed_parameters is None
            else sorted(admission.allowed_parameters),
            "maxima": {one.parameter: one.most for one in admission.maxima},
        },
        "affinity": {
            "prefix_bytes": gateway.affinity.prefix_bytes,
            "balance_factor": gateway.affinity.balance_percent / 100,
        },
        "health": {
            "interval_seconds": health.interval_seconds,
            "timeout_seconds": health.timeout_seconds,
            "failures": health.failures,
            "open_seconds": health.open_seconds,
            "max_open_seconds": health.max_open_seconds,
        },
        "timeouts": {
            # Nginx waits longer (planning/nginx.py, SERVICE_WAITS_SECONDS): the service's words
            # are to reach the client.
            "first_byte_seconds": gateway.read_timeout_seconds,
            "between_bytes_seconds": gateway.read_timeout_seconds,
        },
        "usage": {"kv_cache": gateway.kv_cache_usage},
        "revoked_streams": gateway.revoked_streams,
        "auth": _auth(gateway),
        "stop_seconds": gateway.stop_seconds,
    }


def _auth(gateway: Gateway) -> dict[str, Any] | None:
    auth = gateway.auth
    if auth.url is None:
        return None
    return {
        "url": auth.url,
        "ca": auth.ca_file,
        "connect_seconds": auth.connect_timeout_seconds,
        "answer_seconds": auth.timeout_seconds,
    }


def _local(settings: Settings, gateway: Gateway, held: Hold | None) -> dict[str, Any]:
    engine = settings.engine.name
    model = held.served_model_name if held is not None else ""
    backend = _backend(engine, settings, gateway, model or settings.served_model_name) | {
        "url": f"unix:/run/llm-engine-{engine}/http.sock",
        "drain_flag": f"/run/llm/drain/{engine}",
    }
    # What the settings say of a release is not so of a held one: its name is known, and for the
    # rest its engine is asked.
    unknown = {"max_model_len": None, "priority_scheduling": False} if held is not None else {}
    return backend | unknown


def _remote(found: Mapping[str, Any], gateway: Gateway) -> dict[str, Any]:
    """An engine behind its host's door, by mutual TLS under the inventory's CA."""
    settings: Settings = found["settings"]
    address = found["address"]
    host = f"[{address}]" if ":" in address else address
    name = f"{found['host']}-{settings.engine.name}"
    return _backend(name, settings, gateway, settings.served_model_name) | {
        "url": f"https://{host}:{gateway.engine_port}",
        "tls": {
            "ca": f"{MTLS}/ca.crt",
            "certificate": f"{MTLS}/host.crt",
            "key": f"{MTLS}/host.key",
            "server_name": found["server_name"],
        },
        "ready_path": DOOR_READY,
    }


def _backend(name: str, settings: Settings, gateway: Gateway, model: str) -> dict[str, Any]:
    args = settings.engine.args
    concurrent = gateway.max_concurrent or _whole(args.get("max-num-seqs")) or DEFAULT_CONCURRENT
    aliases = {alias: served for alias, served in gateway.aliases.items() if served == model}
    return {
        "name": name,
        "models": [model],
        "aliases": aliases,
        # Left to the engine where the settings write it otherwise ("16k", auto).
        "max_model_len": _whole(args.get("max-model-len")),
        "priority_scheduling": args.get("scheduling-policy") == "priority",
        "max_concurrent": concurrent,
    }


def _whole(value: object) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return int(value) if whole and isinstance(value, int) else None


def needs_network(settings: Settings, engines: Sequence[Any]) -> bool:
    """Whether the service speaks to anybody beyond the host's own sockets."""
    gateway = settings.gateway
    return bool(engines) or (gateway is not None and gateway.auth.url is not None)


def shape_of(settings: Settings, engines: Sequence[Any]) -> str:
    """What the unit has to be: direct, full, or full-remote. Another one is another process."""
    assert settings.gateway is not None
    if settings.gateway.mode == "direct":
        return "direct"
    return "full-remote" if needs_network(settings, engines) else "full"
