"""Taking hosts out of service, for hands on them."""

from __future__ import annotations

from pyinfra_deploy.runbooks import common
from pyinfra_deploy.runbooks.book import Runbook, Scene, Step, StopError


def stop_if_asked(scene: Scene) -> None:
    if scene.options.get("stop") == "yes":
        common.stop_engine(scene)


def out(scene: Scene) -> None:
    answers = scene.ask("service answers")
    wrong = [host for host in scene.hosts if not answers[host]["drain"]]
    if wrong:
        raise StopError(f"{', '.join(wrong)} still takes requests")


RUNBOOK = Runbook(
    "take-out",
    "take hosts out of service",
    "For hands on a host: no new requests, running ones end. With --set stop=yes its engine is "
    "stopped, too. The drain stays through deploys and rollouts until the runbook put-in; a "
    "reboot ends it. A stopped engine stays stopped until put-in, through reboots, too: deploys "
    "refuse the host, rollouts leave it out.",
    (
        common.FREE,
        common.OTHERS_SERVE,
        common.DRAIN,
        Step("do", "stop the engine, with --set stop=yes", stop_if_asked),
        Step("after", "the host is drained", out),
    ),
    options={"stop": "yes: its engine is stopped, too", **common.CUT, **common.ALONE},
    locks=True,
    after_failure="A host that was drained stays so: fleet undrain.",
)
