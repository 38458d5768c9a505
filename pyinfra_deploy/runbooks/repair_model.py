"""A model whose files are damaged on a host."""

from __future__ import annotations

from pyinfra_deploy.runbooks import common
from pyinfra_deploy.runbooks.book import Runbook, Scene, Step

DAMAGED = 1


def verify(scene: Scene, *, good: tuple[int, ...]) -> None:
    words = ["model", "verify", scene.fleet.name, "--limit", ",".join(scene.hosts)]
    deep = [] if scene.options.get("quick") == "yes" else ["--deep"]
    scene.run_fleet(*words, *deep, good=good)


def find(scene: Scene) -> None:
    verify(scene, good=(0, DAMAGED))


def whole(scene: Scene) -> None:
    verify(scene, good=(0,))


RUNBOOK = Runbook(
    "repair-model",
    "find damaged files of a model and replace them",
    "Every byte is read from the disk and compared with what was verified, at low priority. The "
    "deploy fetches only the files that differ, from neighbours or the hub, and restarts an engine "
    "that had loaded one, drained and with its proof. A disk that damages files again is broken.",
    (
        common.FREE,
        common.OTHERS_SERVE,
        Step("do", "read every file and compare it (quick=yes: only what looks changed)", find),
        common.DEPLOY,
        Step("after", "every file is as it was verified", whole),
        common.ANSWERS,
    ),
    one=True,
    options={"quick": "yes: hash only files whose size or times differ", **common.ALONE},
    after_failure="Damaged files stay named on the host; the next deploy replaces them.",
)
