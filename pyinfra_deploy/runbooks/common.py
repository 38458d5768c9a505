"""Checks and steps that more than one runbook has."""

from __future__ import annotations

import json

from pyinfra_deploy.operations.run import is_dead_run_of_this_machine
from pyinfra_deploy.runbooks.book import Scene, Step, StopError

DRAIN_MARGIN_SECONDS = 60


def nobody_at_work(scene: Scene) -> None:
    seen = scene.ask("rollout status")
    locked = [host for host in scene.hosts if seen[host]["live"]]
    dead = [host for host in locked if is_dead_run_of_this_machine(seen[host]["lease"])]
    if dead:
        scene.say(
            f"  a run of this machine was killed on {', '.join(dead)}: its lock is taken over"
        )
    held = [f"{host} ({seen[host]['lease']['owner']})" for host in locked if host not in dead]
    if held:
        raise StopError(
            f"another run is at work on {', '.join(held)}",
            f"wait for it: fleet lock status {scene.fleet.name}",
        )


FREE = Step("before", "no other run is at work on these hosts", nobody_at_work)


def others_serve(scene: Scene) -> None:
    """Clients of each model must have somewhere to go. Said, not refused, where no other host is
    there for it."""
    models = {
        name: one.settings.served_model_name
        for name, one in scene.fleet.hosts.items()
        if "gpu" in one.groups and one.settings.model is not None
    }
    for model in sorted({models[host] for host in scene.hosts if host in models}):
        others = [name for name in models if models[name] == model and name not in scene.hosts]
        if not others:
            scene.say(f"  DOWNTIME: no other host serves {model}; clients get 503 with Retry-After")
            continue
        requests = {name: {"engine": scene.engine(name)} for name in others}
        # One that is not reached serves nobody, which does not matter where another does.
        answers = scene.doors.ask("service answers", requests, 120)
        asked = [answers[name] for name in others if name not in answers.missing]
        good = [one for one in asked if one["answers"] and not one["drain"]]
        if not good and scene.options.get("alone") != "yes":
            raise StopError(
                f"none of {', '.join(others)} answers for {model} and takes requests",
                "bring one back first, or go on without: --set alone=yes",
            )


OTHERS_SERVE = Step(
    "before", "another engine host of the same model answers and takes requests", others_serve
)
ALONE = {"alone": "yes: also where no other host serves"}


def drain(scene: Scene) -> None:
    """Those that an operator had drained stay drained in the end."""
    waits = {host: scene.fleet.hosts[host].settings.engine.drain_seconds for host in scene.hosts}
    longest = max(waits.values())
    answers = scene.ask(
        "service drain", by=scene.who, reason=scene.why or "a runbook",
        wait_seconds=longest, timeout_seconds=longest + DRAIN_MARGIN_SECONDS,
    )  # fmt: skip
    scene.seen["drained"] = [host for host in scene.hosts if answers[host]["changed"]]
    busy = [host for host in scene.hosts if answers[host]["running"]]
    if busy and scene.options.get("cut") != "yes":
        raise StopError(
            f"requests still run on {', '.join(busy)} after {longest} s",
            "wait and run again, or cut them: --set cut=yes",
        )


CUT = {"cut": "yes: running requests that outlive engine.drain_seconds are cut"}
DRAIN = Step("do", "drain: no new requests, running ones end", drain)


def stop_engine(scene: Scene) -> None:
    scene.ask(
        "service stop", by=scene.who, reason=scene.why or "a runbook", now=False,
        timeout_seconds=960,
    )  # fmt: skip


STOP_ENGINE = Step("do", "stop the engine", stop_engine)


def start_engine(scene: Scene) -> None:
    scene.ask("service start", by=scene.who)
    answering(scene)


def answering(scene: Scene) -> None:
    """Each engine answers a completion, within its own start timeout."""
    seconds = max(
        scene.fleet.hosts[host].settings.engine.start_timeout_seconds or 3600
        for host in scene.hosts
    )

    def why() -> str:
        answers = scene.ask("service answers")
        silent = [
            f"{host} does not answer ({answers[host]['active']}: {answers[host]['why']})"
            for host in scene.hosts
            if not answers[host]["answers"]
        ]
        dead = [host for host in scene.hosts if answers[host]["active"] == "failed"]
        if dead:
            raise StopError(
                f"the engine of {', '.join(dead)} died at its start",
                f"fleet logs {scene.fleet.name} {dead[0]}",
            )
        return "; ".join(silent)

    scene.wait(why, seconds)


START_ENGINE = Step("do", "start the engine and wait for a real completion", start_engine)
ANSWERS = Step("after", "the engine answers a completion", answering)


def undrain_ours(scene: Scene) -> None:
    ours = scene.seen.get("drained", [])
    if ours:
        scene.ask("service undrain", ours, by=scene.who)
    for host in scene.hosts:
        if host not in ours:
            scene.say(f"  {host} was drained before, and stays so")


UNDRAIN_OURS = Step("do", "undrain, where this runbook has drained", undrain_ours)


def well(scene: Scene) -> None:
    """What `fleet status` says: findings that only warn do not stop it."""
    limit = ("--limit", ",".join(scene.hosts))
    printed = scene.run_fleet("status", scene.fleet.name, *limit, "--json", good=(0, 1))
    found = json.loads(printed)["hosts"]
    bad = [
        f"{host}: {name}: {part['text']}"
        for host, one in found.items()
        for name, part in one.items()
        if isinstance(part, dict) and part.get("state") == "bad"
    ]
    if bad or set(scene.hosts) - set(found):
        raise StopError("; ".join(bad) or "not all hosts could be read", lines=bad)


WELL = Step("after", "fleet status finds nothing broken", well)


def plan(scene: Scene) -> None:
    scene.run_fleet("plan", scene.fleet.name, "--limit", ",".join(scene.hosts), good=(0, 2))


PLAN = Step("before", "fleet plan refuses nothing", plan)


def deploy(scene: Scene) -> None:
    scene.run_fleet("deploy", scene.fleet.name, "--limit", ",".join(scene.hosts), "--yes")


DEPLOY = Step("do", "fleet deploy", deploy)
