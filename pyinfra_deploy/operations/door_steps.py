"""Operations for traffic between hosts: certificates of the inventory's CA, the engine's door."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra import logger
from pyinfra.api import operation

from pyinfra_deploy.keys.errors import KeysError
from pyinfra_deploy.operations.calling import answer_of, on_host
from pyinfra_deploy.planning.door_plan import door_files
from pyinfra_deploy.planning.wanted import GATEWAY_USER

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyinfra.api import Host, State

    from pyinfra_deploy.operations.calling import Commands
    from pyinfra_deploy.planning.host_plan import HostPlan
    from pyinfra_deploy.settings.mutual_tls import MutualTls


@operation()
def issue_host_certificate(
    identity: MutualTls, sign: Callable[[str], tuple[str, str]], llm_root: str
) -> Commands:
    """Have the host make a new key and a request, and give it the certificate that it shows to
    other hosts. Key and certificate change together, or not at all.

    + identity: what the host is between hosts
    + sign: takes a request and returns the certificate and the CA's certificate, PEM
    + llm_root: where the host program is

    **Example:**

    .. code:: python

        issue_host_certificate(
            name="Issue a certificate for other hosts", identity=signer.identity, sign=signer.sign,
            llm_root="/srv/llm",
        )
    """
    # Nginx reads an engine's key as root; the gateway service reads its own as its own user.
    reader = GATEWAY_USER if identity.role == "gateway" else None
    asked = {"name": identity.name, "reader": reader}

    def issue(state: State, host: Host) -> bool:
        step = "certificate for other hosts"
        request = answer_of(state, host, step, "mtls request", asked, llm_root)
        if request is None:
            return False
        try:
            certificate, authority = sign(str(request["csr"]))
        except KeysError as error:
            host.log_styled(str(error), fg="red", log_func=logger.error)
            return False
        spec = {"certificate": certificate, "ca": authority}
        return answer_of(state, host, step, "mtls install", spec, llm_root) is not None

    yield on_host(issue)


@operation()
def apply_door(plan: HostPlan, identity: MutualTls) -> Commands:
    """Render the door for the Nginx on the host, test it there, then reload; the former files are
    kept when the test or the probe fails.

    + plan: the host's plan
    + identity: what the host is between hosts

    **Example:**

    .. code:: python

        apply_door(name="Apply the engine's door", plan=plan, identity=identity)
    """
    settings = plan.settings

    def apply(state: State, host: Host) -> bool:
        # Asked now: the package may have come with this very run.
        system = answer_of(state, host, "nginx", "host facts", {}, settings.llm_root)
        if system is None:
            return False
        rendered = door_files(settings, identity, system)
        spec = {
            "files": rendered.files,
            "remove": list(rendered.remove),
            # The probe has no certificate, so this is what it must get.
            "probe": {
                "port": identity.port,
                "server_name": identity.name,
                "path": "/ready",
                "status": 403,
            },
            "reload": bool(plan.host_certificate),
        }
        return answer_of(state, host, "nginx", "nginx apply", spec, settings.llm_root) is not None

    yield on_host(apply)
