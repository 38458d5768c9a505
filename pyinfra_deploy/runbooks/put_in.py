"""Putting hosts back into service."""

from __future__ import annotations

from pyinfra_deploy.runbooks import common
from pyinfra_deploy.runbooks.book import Runbook, Scene, Step, StopError


def undrain(scene: Scene) -> None:
    scene.ask("service undrain", by=scene.who)


def taking(scene: Scene) -> None:
    answers = scene.ask("service answers")
    wrong = [host for host in scene.hosts if answers[host]["drain"]]
    if wrong:
        raise StopError(f"{', '.join(wrong)} is drained again")


RUNBOOK = Runbook(
    "put-in",
    "put hosts back into service",
    "After take-out or emergency-stop: an engine that is down is started; only when it answers a "
    "completion does the host take requests again.",
    (
        common.FREE,
        common.START_ENGINE,
        Step("do", "undrain", undrain),
        Step("after", "the host takes requests", taking),
        common.WELL,
    ),
    locks=True,
    after_failure="A host that does not answer stays drained.",
)
