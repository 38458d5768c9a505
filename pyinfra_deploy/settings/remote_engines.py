"""The engines of other hosts behind a gateway, and what the whole inventory has to agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.settings.mutual_tls import engine_hosts, host_identity
from pyinfra_deploy.settings.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.settings.fleet import Fleet, FleetHost


def remote_engines(fleet: Fleet, host: FleetHost) -> list[dict[str, Any]]:
    """[{host, address, server_name, settings}] of the engines of other hosts that a gateway in mode
    full has behind it; empty for others. server_name: the one in the engine host's certificate."""
    gateway = host.settings.gateway
    if "gateway" not in host.groups or gateway is None or gateway.mode != "full":
        return []
    return [
        {
            "host": one.name,
            "address": str(one.connection.get("ssh_hostname") or one.name),
            "server_name": host_identity(one.name, "engine", fleet.name),
            "settings": one.settings,
        }
        for one in engine_hosts(fleet)
    ]


def gateway_problems(fleet: Fleet) -> Iterator[Problem]:
    """Gateways without an engine, and aliases of models that no engine behind them serves."""
    for host in fleet.hosts.values():
        gateway = host.settings.gateway
        if "gateway" not in host.groups or gateway is None or gateway.mode != "full":
            continue
        engines = [one["settings"] for one in remote_engines(fleet, host)]
        engines += [host.settings] if "gpu" in host.groups else []
        if not engines:
            yield _problem(
                host,
                "gateway",
                "is in the group gateway but not in gpu, and no host of the inventory has an "
                "engine for it: one that is itself a gateway serves its own clients alone.",
                "put it into both groups, or hosts with GPUs into gpu and not into gateway.",
            )
            continue
        served = sorted({one.served_model_name for one in engines if one.model is not None})
        for alias, model in gateway.aliases.items():
            key = f"gateway.aliases.{alias}"
            if model not in served:
                yield _problem(
                    host,
                    key,
                    f"stands for {model}, which no engine behind this gateway serves.",
                    f"write one of: {', '.join(served)}.",
                )
            elif alias in served:
                yield _problem(
                    host, key, f"{alias} is itself the name of a model.", "choose another name."
                )


def engines_without_gateway(fleet: Fleet) -> Iterator[Problem]:
    """Warnings: hosts whose engine no client can reach."""
    forwarded = {one.name for one in engine_hosts(fleet)}
    for host in fleet.hosts.values():
        if "gpu" in host.groups and "gateway" not in host.groups and host.name not in forwarded:
            yield Problem(
                "inventory",
                None,
                "",
                host.name,
                None,
                "is in the group gpu but not in gateway: its engine listens on a Unix socket that "
                "nothing will forward to.",
                "put it into the group gateway too, or have a gateway in gateway.mode: full.",
            )


def _problem(host: FleetHost, key: str, message: str, fix: str) -> Problem:
    return Problem("group_vars", None, key, host.name, None, message, fix)
