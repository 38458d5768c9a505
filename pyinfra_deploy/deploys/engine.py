"""The engine: a release staged beside the running one, then switched to behind the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra.api import deploy

from pyinfra_deploy.deploys.verify import verification_for
from pyinfra_deploy.operations import engine_steps

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan


@deploy("Engine")
def engine(plan: HostPlan) -> None:
    """Hosts that serve nothing yet go live together; hosts that serve go one by one, each one
    verified before the next is touched, and after one failure the rest are left alone."""
    if not plan.go_live:
        return
    if not plan.serving:
        engine_steps.go_live(name="Go live", plan=plan, verification=None)
    else:
        engine_steps.go_live(
            name="Switch hosts that serve, one by one",
            plan=plan,
            verification=verification_for(plan) if plan.verified_at_go_live else None,
            _serial=True,
        )
