"""The last step: the service used as a client would, where what runs has not passed that yet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyinfra.api import deploy

from pyinfra_deploy.operations import service_checks
from pyinfra_deploy.planning.body_limit import max_body_mb

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan
    from pyinfra_deploy.settings.schema import Settings


@deploy("Verify")
def verify(plan: HostPlan) -> None:
    """Every check is of the host's own verification key, so that no client's limit is used up."""
    if plan.verify and not plan.verified_at_go_live:
        service_checks.verify_service(
            name="Verify through HTTPS",
            plan=plan,
            verification=verification_for(plan),
        )


def verification_for(plan: HostPlan) -> dict[str, Any]:
    """The input of the host program's `verify`."""
    found = verification_of(plan.settings, plan.groups, plan.gateway_text)
    assert found is not None
    if plan.held is not None and plan.held.served_model_name:
        found["model"] = plan.held.served_model_name
    return found


def verification_of(
    settings: Settings, groups: frozenset[str], gateway_text: str | None
) -> dict[str, Any] | None:
    """The same, of what the settings ask for; None for a host without a gateway. gateway_text: the
    gateway service's configuration; None in mode direct."""
    if "gateway" not in groups or settings.gateway is None:
        return None
    service = json.loads(gateway_text) if gateway_text else None
    limits = settings.gateway.rate_limit
    return {
        "https_port": settings.gateway.https_port,
        "http_port": settings.gateway.http_port,
        "server_name": settings.gateway.server_name,
        # A gateway in front of other hosts may have no model of its own: there the host program
        # asks the service what it has, and tries each.
        "model": service["backends"][0]["models"][0] if service else settings.served_model_name,
        "engine": settings.engine.name if "gpu" in groups else None,
        "burst": {
            "requests": min(limits.ip_burst, limits.key_burst) + 40,
            "limits": [
                [limits.ip_per_minute, limits.ip_burst],
                [limits.key_per_minute, limits.key_burst],
            ],
        },
        "vhost": {
            "cors_origin": next(iter(settings.gateway.cors_origins), None),
            "max_body_mb": max_body_mb(settings),
        },
        "full": None
        if service is None
        else {
            "counts_tokens": service["admission"]["count_tokens"],
            "max_body_bytes": service["admission"]["max_body_bytes"],
        },
    }
