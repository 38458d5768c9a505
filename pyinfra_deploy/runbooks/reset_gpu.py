"""Resetting GPUs that hang or ask for it, with nothing on them."""

from __future__ import annotations

from pyinfra_deploy.runbooks import common
from pyinfra_deploy.runbooks.book import Runbook, Scene, Step, StopError


def gpus_of(scene: Scene) -> list[int]:
    words = [word.strip() for word in scene.options.get("gpus", "").split(",")]
    if not all(word.isdecimal() for word in words):
        raise StopError("it is not said which GPUs", "--set gpus=0, or gpus=0,1")
    return [int(word) for word in words]


def known(scene: Scene) -> None:
    wanted = gpus_of(scene)
    answer = scene.ask("gpu holders")[scene.host]
    scene.seen["gpus"] = len(answer["gpus"])
    unknown = [one for one in wanted if one >= len(answer["gpus"])]
    if unknown:
        raise StopError(
            f"the driver knows {len(answer['gpus'])} GPUs, and not {unknown}",
            "a card that has fallen off the bus needs a reboot, not a reset",
            answer["gpus"],
        )
    for one in answer["holders"]:
        scene.say(f"  open now by process {one['pid']} ({one['name']})")


def reset(scene: Scene) -> None:
    gpus = gpus_of(scene)
    answer = scene.ask("gpu reset", by=scene.who, gpus=gpus, timeout_seconds=600)[scene.host]
    for line in answer["gpus"]:
        scene.say(f"  {line}")
    scene.seen["after"] = len(answer["gpus"])


def all_there(scene: Scene) -> None:
    if scene.seen["after"] < scene.seen["gpus"]:
        raise StopError(
            f"{scene.seen['after']} GPUs are left of {scene.seen['gpus']}",
            "reboot the host; if it stays so, the card or its slot is broken",
        )


RUNBOOK = Runbook(
    "reset-gpu",
    "reset GPUs of a host",
    "For a card that hangs, or that a reset is asked for (pending row remaps, Xid). The host is "
    "drained, its engine stopped; only if no process has a card open any more is it reset. Then "
    "the engine starts, answers, and takes requests again.",
    (
        common.FREE,
        Step("before", "the driver knows these GPUs", known),
        common.OTHERS_SERVE,
        common.DRAIN,
        common.STOP_ENGINE,
        Step("do", "reset the GPUs, if no process has one open", reset),
        Step("after", "all GPUs are still listed", all_there),
        common.START_ENGINE,
        common.UNDRAIN_OURS,
        common.WELL,
    ),
    one=True,
    options={"gpus": "numbers, as nvidia-smi has them: 0 or 0,1", **common.CUT, **common.ALONE},
    locks=True,
    after_failure="The host may be left drained with its engine stopped: put it back with the "
    "runbook put-in, when it is mended.",
)
