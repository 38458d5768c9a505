"""The service used as a client would use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra.api import operation

from pyinfra_deploy.operations.calling import answer_of, on_host
from pyinfra_deploy.operations.go_live import gateway_back, go_back, went_live

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra.api import Host, State

    from pyinfra_deploy.operations.calling import Commands
    from pyinfra_deploy.planning.host_plan import HostPlan


@operation()
def verify_service(plan: HostPlan, verification: Mapping[str, Any]) -> Commands:
    """Use the service as a client would: TLS, a key, an answer, a stream, and what must not pass.

    + plan: the host's plan
    + verification: the input of the host program's `verify`

    **Example:**

    .. code:: python

        verify_service(name="Verify through HTTPS", plan=plan, verification=verification)
    """

    def verify(state: State, host: Host) -> bool:
        ok = verified(state, host, plan, verification)
        if not ok:
            back = go_back if went_live(host) else gateway_back
            back(state, host, plan.settings, "it was not what a client has to see")
        return ok

    yield on_host(verify)


def verified(state: State, host: Host, plan: HostPlan, verification: Mapping[str, Any]) -> bool:
    result = answer_of(
        state, host, "verify", "verify", verification, plan.settings.llm_root, timeout_seconds=600
    )
    if result is None:
        return False
    for check in result.get("checks", []):
        host.log(f"verify: {check.get('name')}: {check.get('figures') or 'as it should be'}")
    return True
