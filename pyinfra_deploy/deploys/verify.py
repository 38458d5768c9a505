"""The last step: the service used as a client would, where what runs has not passed that yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra.api import deploy

from pyinfra_deploy.operations import service_checks

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
    found = verification_of(plan.settings, plan.groups)
    assert found is not None
    if plan.held is not None and plan.held.served_model_name:
        found["model"] = plan.held.served_model_name
    return found


def verification_of(settings: Settings, groups: frozenset[str]) -> dict[str, Any] | None:
    """The same, of what the settings ask for; None for a host without a gateway."""
    if "gateway" not in groups or settings.gateway is None:
        return None
    assert settings.model is not None
    limits = settings.gateway.rate_limit
    return {
        "https_port": settings.gateway.https_port,
        "http_port": settings.gateway.http_port,
        "server_name": settings.gateway.server_name,
        "model": settings.served_model_name,
        "engine": settings.engine.name if "gpu" in groups else None,
        "burst": {"requests": min(limits.ip_burst, limits.key_burst) + 40},
    }
