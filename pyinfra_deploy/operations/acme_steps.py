"""Operations for a certificate of an ACME authority."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra.api import operation

from pyinfra_deploy.operations.calling import answer_of, on_host
from pyinfra_deploy.planning.certificate import ACME_STOP, acme_request

if TYPE_CHECKING:
    from pyinfra.api import Host, State

    from pyinfra_deploy.operations.calling import Commands
    from pyinfra_deploy.planning.host_plan import HostPlan


@operation()
def ask_authority(plan: HostPlan) -> Commands:
    """Have certbot on the host get a certificate, and renew it from now on; or, where the settings
    do not want one any more, renew no more.

    + plan: the host's plan

    **Example:**

    .. code:: python

        ask_authority(name="Ask the authority for a certificate", plan=plan)
    """
    settings = plan.settings
    command = "acme stop" if plan.acme == ACME_STOP else "acme obtain"
    spec = {} if plan.acme == ACME_STOP else acme_request(settings)

    def ask(state: State, host: Host) -> bool:
        return answer_of(state, host, "acme", command, spec, settings.llm_root) is not None

    yield on_host(ask)
