"""New TLS keys and certificates on gateways, and for traffic between hosts."""

from __future__ import annotations

from pyinfra_deploy.deploys.verify import verification_of
from pyinfra_deploy.planning.gateway_config import service_text
from pyinfra_deploy.runbooks import common
from pyinfra_deploy.runbooks.book import Runbook, Scene, Step, StopError
from pyinfra_deploy.settings.mutual_tls import mutual_tls_of
from pyinfra_deploy.settings.remote_engines import remote_engines

VERIFY_SECONDS = 600


def own_ca(scene: Scene) -> None:
    """Of engine hosts behind gateways of other hosts, what they show to these."""
    fleet = scene.fleet
    gateways = {host for host in scene.hosts if "gateway" in fleet.hosts[host].groups}
    concerned = [
        host
        for host in scene.hosts
        if host in gateways or mutual_tls_of(fleet, fleet.hosts[host]).role
    ]
    if not concerned:
        raise StopError(
            f"{', '.join(scene.hosts)} has no certificate of the inventory's CA",
            "name gateways, or hosts whose engines gateways of other hosts come to",
        )
    scene.hosts = concerned
    for host in gateways:
        gateway = fleet.hosts[host].settings.gateway
        if gateway is None or gateway.tls.source != "own_ca":
            raise StopError(
                f"{host} has a certificate of yours (gateway.tls.source: files)",
                "renew it where it comes from",
            )
    scene.run_fleet("ca", "show", scene.fleet.name)


def rotate(scene: Scene) -> None:
    for host in scene.hosts:
        code, lines = scene.doors.deploy([host], "rotate_certificate.py")
        if code != 0:
            raise StopError(f"{host}: it did not get a new certificate", lines=lines[-15:])
        scene.say(f"  {host}: new keys, new certificates, Nginx has loaded them")


def verified(scene: Scene) -> None:
    """Of hosts that are not drained: the others answer no client."""
    answers = scene.ask("service answers")
    requests = {}
    for host in scene.hosts:
        one = scene.fleet.hosts[host]
        text = service_text(one.groups, one.settings, remote_engines(scene.fleet, one))
        verification = verification_of(one.settings, one.groups, text)
        if verification is not None and not answers[host]["drain"]:
            requests[host] = verification
    found = scene.doors.ask("verify", requests, VERIFY_SECONDS)
    for host in found.missing:
        first, *more = found.problem(host).splitlines()
        raise StopError(f"{host}: {first}", lines=more)


RUNBOOK = Runbook(
    "rotate-certificates",
    "give hosts new TLS keys and certificates",
    "After a key may have been seen, or by the calendar. Host by host: a new key that never leaves "
    "the host, signed by the inventory's CA, loaded by Nginx without a cut connection; its probe "
    "has to answer. Clients trust the CA and notice nothing. Gateways, and hosts of engines that "
    "gateways of other hosts come to, get new ones for each other, too.",
    (
        Step("before", "the certificates are of the inventory's CA, which can be read", own_ca),
        common.FREE,
        Step("do", "new key, certificate and reload, host by host", rotate),
        Step("after", "what a client does through HTTPS works, but on drained hosts", verified),
        common.WELL,
    ),
    locks=True,
    after_failure="The host goes on with the certificate that Nginx has loaded; run it again.",
)
