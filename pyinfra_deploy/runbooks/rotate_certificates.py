"""New TLS keys and certificates on gateways."""

from __future__ import annotations

from pyinfra_deploy.runbooks import common
from pyinfra_deploy.runbooks.book import Runbook, Scene, Step, StopError


def own_ca(scene: Scene) -> None:
    for host in scene.hosts:
        gateway = scene.fleet.hosts[host].settings.gateway
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
        scene.say(f"  {host}: new key, new certificate, Nginx has loaded them")


RUNBOOK = Runbook(
    "rotate-certificates",
    "give gateways new TLS keys and certificates",
    "After a key may have been seen, or by the calendar. Host by host: a new key that never leaves "
    "the host, signed by the inventory's CA, loaded by Nginx without a cut connection; its probe "
    "has to answer. Clients trust the CA and notice nothing.",
    (
        common.FREE,
        Step("before", "the certificates are of the inventory's CA, which can be read", own_ca),
        Step("do", "new key, certificate and reload, host by host", rotate),
        common.WELL,
    ),
    group="gateway",
    after_failure="The host goes on with the certificate that Nginx has loaded; run it again.",
)
