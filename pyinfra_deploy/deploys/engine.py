"""The engine: a release staged beside the running one, then switched to behind the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra.api import deploy

from pyinfra_deploy.deploys.verify import verification_for
from pyinfra_deploy.operations import engine_steps
from pyinfra_deploy.operations.rollout_run import this_rollout

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan


@deploy("Engine")
def engine(plan: HostPlan) -> None:
    """Hosts that serve nothing yet go live together; hosts that serve go one by one, each one
    verified before the next is touched, and after one failure the rest are left alone. As a step of
    a rollout this run has the hosts of one group, which go together."""
    if not plan.go_live:
        return
    verification = verification_for(plan) if plan.verified_at_go_live else None
    if not plan.serving or this_rollout() is not None:
        engine_steps.go_live(name="Go live", plan=plan, verification=verification)
    else:
        engine_steps.go_live(
            name="Switch hosts that serve, one by one",
            plan=plan,
            verification=verification,
            _serial=True,
        )
