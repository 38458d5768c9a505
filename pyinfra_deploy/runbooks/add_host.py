"""A new host into the fleet, and new hardware under an old name."""

from __future__ import annotations

from pyinfra_deploy.runbooks import common
from pyinfra_deploy.runbooks.book import Runbook, Scene, Step, StopError


def bare(scene: Scene) -> None:
    engine = scene.ask("rollout status")[scene.host]["engine"] or {}
    if engine.get("current"):
        raise StopError(
            f"{scene.host} has release {engine['current']} already",
            f"fleet deploy {scene.fleet.name} --limit {scene.host}, or take ours off it first: "
            "fleet uninstall",
        )


BARE = Step("before", "the host answers, and nothing of ours is live on it", bare)

RUNBOOK = Runbook(
    "add-host",
    "bring a new host into service",
    "Write it into hosts.yml first, in the groups of its neighbours. The plan judges its hardware; "
    "the deploy installs everything, takes the model from its neighbours where fan-out is on, and "
    "it serves when it has answered a completion.",
    (BARE, common.FREE, common.PLAN, common.DEPLOY, common.ANSWERS, common.WELL),
    one=True,
    after_failure="What is there is kept: run it, or fleet deploy, again.",
)
