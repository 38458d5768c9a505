"""What a rollout may bring to all hosts before its canary is switched: pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan


def built_early(plan: HostPlan) -> bool:
    """Whether runtime and model of a host that serves can be built beside what it runs while it
    waits for its turn.

    Only where nothing else of the host has to change first: a unit, a package or the host program
    that is new as well is the canary's to try. What the gateway service is told of the new release
    comes with its go-live.
    """
    builds = plan.runtime is not None or plan.pull is not None
    if not builds or not plan.serving or plan.held is not None:
        return False
    rest = replace(
        plan, tools=(), runtime=None, pull=None, go_live="", verify="", ended_run="",
        gateway_activate="" if plan.gateway_at_go_live else plan.gateway_activate,
    )  # fmt: skip
    return not rest.changes
