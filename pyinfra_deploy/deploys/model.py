"""The model: pulled by the hub's own client, verified by us, published whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra import host
from pyinfra.api import deploy

from pyinfra_deploy.operations import engine_steps, fan_out, host_steps
from pyinfra_deploy.planning import wanted

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan


@deploy("Model")
def model(plan: HostPlan) -> None:
    """Pull the model when it is not on the host, or not as it was recorded."""
    if plan.pull is None:
        return
    # Here and not in the operation, which with `pyinfra -y` is looked at only when it is executed.
    fan_out.announce(host.state, host, plan)
    settings = plan.settings
    assert settings.model is not None
    if settings.model.token is not None:
        host_steps.put_secret(
            name="Give the host the hub's token",
            secret_name=wanted.TOKEN_CREDENTIAL,
            secret=settings.model.token,
            llm_root=settings.llm_root,
        )
    engine_steps.pull_model(
        name=f"Pull {settings.model.id}",
        plan=plan,
        job_id=wanted.pull_job_id(plan.pull),
    )
