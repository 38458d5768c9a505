"""vLLM: a Python environment built from a lock, beside the one that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra.api import deploy

from pyinfra_deploy.operations import host_steps

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan


@deploy("Runtime")
def runtime(plan: HostPlan) -> None:
    """The installer and the hub's client, then the runtime that the settings pin."""
    root = plan.settings.llm_root
    for tool in plan.tools:
        host_steps.build_environment(name=f"Install {tool.label}", environment=tool, llm_root=root)
    if plan.runtime is not None:
        host_steps.build_environment(
            name=f"Install {plan.runtime.label}", environment=plan.runtime, llm_root=root
        )
