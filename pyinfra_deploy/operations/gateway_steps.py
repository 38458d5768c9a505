"""Operations of the gateway: keys, certificate, Nginx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra import logger
from pyinfra.api import operation

from pyinfra_deploy.keys.errors import KeysError
from pyinfra_deploy.operations.calling import answer_of, on_host
from pyinfra_deploy.planning.gateway_plan import GATEWAY_UNIT, nginx_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyinfra.api import Host, State

    from pyinfra_deploy.operations.calling import Commands
    from pyinfra_deploy.planning.host_plan import HostPlan
    from pyinfra_deploy.settings.schema import Settings


# Of this run, by host: {configuration, environment} that the gateway service had before this run
# gave it others.
_former: dict[str, dict[str, str]] = {}


@operation()
def push_keys(document: Callable[[], Mapping[str, Any]], llm_root: str) -> Commands:
    """Give a gateway the digests of the API keys; the host refuses an older serial.

    + document: makes the key file's document, called when this runs
    + llm_root: where the host program is

    **Example:**

    .. code:: python

        push_keys(name="Push the API keys' digests", document=lambda: keys, llm_root="/srv/llm")
    """

    def push(state: State, host: Host) -> bool:
        try:
            content = document()
        except KeysError as error:
            host.log_styled(str(error), fg="red", log_func=logger.error)
            return False
        return answer_of(state, host, "keys", "keys push", content, llm_root) is not None

    yield on_host(push)


@operation()
def activate_service(plan: HostPlan) -> Commands:
    """Have the gateway service run the wanted environment, shape and configuration: by a hand-over
    that cuts no answer where it runs already, else by a start. What does not come up is taken back.

    + plan: the host's plan

    **Example:**

    .. code:: python

        activate_service(name="Bring the gateway service up to date", plan=plan)
    """
    yield on_host(lambda state, host: activated(state, host, plan))


def activated(state: State, host: Host, plan: HostPlan) -> bool:
    """The same, also within a go-live. False after a refusal, which was reported."""
    assert plan.settings.gateway is not None
    spec = {
        "environment": plan.gateway_name,
        "unit": GATEWAY_UNIT,
        "shape": plan.gateway_shape,
        "configuration": plan.gateway_text,
        "stop_seconds": plan.settings.gateway.stop_seconds,
    }
    # Leaving mode full waits for answers that run.
    timeout_seconds = 2 * plan.settings.gateway.stop_seconds + 300
    answer = answer_of(
        state, host, "gateway service", "gateway activate", spec, plan.settings.llm_root,
        timeout_seconds=timeout_seconds,
    )  # fmt: skip
    _remember(host, answer, plan.gateway_text)
    return answer is not None


def configured(state: State, host: Host, settings: Settings, text: str | None) -> bool:
    """Give the gateway service that runs this configuration, if it has one at all. text: None for
    a host whose gateway has none. False after a refusal, which was reported."""
    if text is None or settings.gateway is None:
        return True
    answer = _configure(state, host, settings, text)
    _remember(host, answer, text)
    return answer is not None


def configured_as_before(state: State, host: Host, settings: Settings) -> bool:
    """Give the gateway service back what it was configured with before this run, where this run
    gave it another. False after a refusal, which was reported."""
    former = _former.pop(host.name, None)
    if former is None:
        return True
    environment = former.get("environment")
    return _configure(state, host, settings, former["configuration"], environment) is not None


def was_reconfigured(host: Host) -> bool:
    """Whether this run gave the gateway service something else, and knows what it had before."""
    return host.name in _former


def _remember(host: Host, answer: Mapping[str, Any] | None, text: str | None) -> None:
    told = answer or {}
    former, before = told.get("former"), told.get("previous")
    # With an older host program nothing is known of the environment.
    another = bool(before) and before != told.get("environment")
    if former is not None and (former != text or another):
        known = {"configuration": former} | ({"environment": str(before)} if another else {})
        _former.setdefault(host.name, known)


def _configure(
    state: State, host: Host, settings: Settings, text: str, environment: str | None = None
) -> dict[str, Any] | None:
    """environment: None leaves the one that runs."""
    assert settings.gateway is not None
    spec = {
        "unit": GATEWAY_UNIT,
        "configuration": text,
        "stop_seconds": settings.gateway.stop_seconds,
    } | ({"environment": environment} if environment else {})
    return answer_of(
        state, host, "gateway service", "gateway configure", spec, settings.llm_root,
        timeout_seconds=2 * settings.gateway.stop_seconds + 300,
    )  # fmt: skip


@operation()
def issue_certificate(
    settings: Settings, sign: Callable[[str], tuple[str, str]], new_key: bool = False
) -> Commands:
    """Have the host make a key and a request, and give it a certificate of the inventory's CA.

    + settings: the host's
    + sign: takes a request and returns the certificate chain and the CA's certificate, PEM
    + new_key: in the place of the one that the host has

    **Example:**

    .. code:: python

        issue_certificate(name="Issue a certificate", settings=settings, sign=authority.sign)
    """
    assert settings.gateway is not None
    llm_root = settings.llm_root
    asked: dict[str, Any] = {"names": [settings.gateway.server_name], "addresses": []}
    asked |= {"new_key": True} if new_key else {}

    def issue(state: State, host: Host) -> bool:
        request = answer_of(state, host, "certificate", "tls request", asked, llm_root)
        if request is None:
            return False
        if new_key and request.get("new_key") is not True:
            host.log_styled(
                "certificate: this host's program is older and makes no new key: deploy first",
                fg="red",
                log_func=logger.error,
            )
            return False
        try:
            chain, authority = sign(str(request["csr"]))
        except KeysError as error:
            host.log_styled(str(error), fg="red", log_func=logger.error)
            return False
        spec = {"certificate_chain": chain, "ca": authority}
        return answer_of(state, host, "certificate", "tls install", spec, llm_root) is not None

    yield on_host(issue)


@operation()
def apply_nginx(settings: Settings, reload: bool) -> Commands:
    """Render Nginx's configuration for the version on the host, test it there, then reload; the
    old one is kept when the test or the probe fails.

    + settings: the host's
    + reload: also where no file of it differs, as after a new certificate

    **Example:**

    .. code:: python

        apply_nginx(name="Apply Nginx's configuration", settings=settings, reload=False)
    """
    assert settings.gateway is not None
    gateway = settings.gateway

    def apply(state: State, host: Host) -> bool:
        # Asked now: the package may have come with this very run.
        system = answer_of(state, host, "nginx", "host facts", {}, settings.llm_root)
        if system is None:
            return False
        rendered = nginx_files(settings, system)
        spec = {
            "files": rendered.files,
            "remove": list(rendered.remove),
            "probe": {
                "port": gateway.https_port,
                "server_name": gateway.server_name,
                # Not /health, which is the engine's: a vhost must be changeable while it is down.
                "path": "/not-listed",
                "status": 404,
            },
            "reload": reload,
        }
        return answer_of(state, host, "nginx", "nginx apply", spec, settings.llm_root) is not None

    yield on_host(apply)
