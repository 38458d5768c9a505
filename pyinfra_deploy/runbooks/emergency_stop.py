"""Stopping engines now."""

from __future__ import annotations

from pyinfra_deploy.runbooks.book import Runbook, Scene, Step, StopError


def seen(scene: Scene) -> None:
    """Hosts that do not answer do not keep the others running."""
    requests = {host: {"engine": scene.engine(host)} for host in scene.hosts}
    answers = scene.doors.ask("rollout status", requests, 30)
    for host in answers.missing:
        scene.say(f"  {host} does not answer: {answers.problem(host).splitlines()[0]}")
    scene.hosts = [host for host in scene.hosts if host not in answers.missing]
    scene.seen["missing"] = answers.missing
    if not scene.hosts:
        raise StopError("no host answers", "pull their plugs")


def stop(scene: Scene) -> None:
    scene.ask(
        "service stop", by=scene.who, reason=scene.why or "emergency stop", now=True,
        timeout_seconds=960,
    )  # fmt: skip


def down(scene: Scene) -> None:
    answers = scene.ask("service answers")
    running = [
        host for host in scene.hosts if answers[host]["active"] not in ("inactive", "failed")
    ]
    if running:
        raise StopError(f"the engine of {', '.join(running)} still runs", "pull its plug")
    if scene.seen["missing"]:
        raise StopError(f"{', '.join(scene.seen['missing'])} was not reached", "pull its plug")


RUNBOOK = Runbook(
    "emergency-stop",
    "stop engines at once, cutting what runs",
    "Heat, smoke, a leak of data: new requests get 503, engines are killed, a go-live at work is "
    "ended. All hosts at once, whoever else is at work on them. Engines stay "
    "stopped through deploys, rollouts and reboots, until the runbook put-in.",
    (
        Step("before", "which hosts answer", seen),
        Step("do", "raise the drain flag, kill the engine", stop),
        Step("after", "no engine runs", down),
    ),
    after_failure="Hosts that are named still compute: cut their power.",
)
