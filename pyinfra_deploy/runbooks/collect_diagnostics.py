"""Everything that somebody elsewhere needs to help, and no secret."""

from __future__ import annotations

import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from pyinfra_deploy.runbooks.book import Runbook, Scene, Step, StopError

LOGS = ("engine", "golive", "watch", "gateway", "nginx")
LINES = 2000


def place(scene: Scene) -> None:
    out = scene.options.get("out", "")
    if not out.endswith(".tar.gz"):
        raise StopError("it is not said where the bundle goes", "--set out=/path/bundle.tar.gz")
    if Path(out).exists() or not Path(out).absolute().parent.is_dir():
        raise StopError(f"{out} exists already, or its directory does not", "name another file")


def collect(scene: Scene) -> None:
    out = Path(scene.options["out"]).absolute()
    with tempfile.TemporaryDirectory(prefix="fleet-bundle-") as name:
        directory = Path(name)
        missing = scene.doors.facts(scene.hosts, directory / "facts")
        for host in missing:
            scene.say(f"  {host}: its facts could not be read")
        for host, parts in _answers(scene).items():
            for part, text in parts.items():
                path = directory / "hosts" / host / part
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(scene.doors.mask(text), encoding="utf-8")
        # For its owner alone from its first byte on.
        out.touch(mode=0o600)
        with tarfile.open(out, "w:gz") as archive:
            archive.add(directory, arcname=out.name.removesuffix(".tar.gz"), filter=_nobody)
    scene.say(f"  {out}: look through it before you send it")


def _answers(scene: Scene) -> dict[str, dict[str, str]]:
    """{host: {file: text}}; why, where a host did not answer."""
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("rollout.json", "rollout status", {}),
        ("events.json", "events tail", {"lines": 200}),
        ("releases.json", "service releases", {}),
        *((f"{of}.log", "service logs", {"of": of, "lines": LINES}) for of in LOGS),
    ]
    found: dict[str, dict[str, str]] = {host: {} for host in scene.hosts}
    for file, command, request in asked:
        requests = {host: {"engine": scene.engine(host), **request} for host in scene.hosts}
        answers = scene.doors.ask(command, requests, 120)
        for host in scene.hosts:
            found[host][file] = (
                f"not read: {answers.problem(host)}\n"
                if host in answers.missing
                else _text(file, answers[host])
            )
    return found


def _text(file: str, answer: dict[str, Any]) -> str:
    if file.endswith(".log"):
        return "\n".join(answer["lines"]) + "\n"
    return json.dumps(answer, indent=1) + "\n"


def _nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


RUNBOOK = Runbook(
    "collect-diagnostics",
    "collect what somebody needs to help, masked",
    "The raw facts that a plan is made from (serial numbers masked), the last 2000 lines of each "
    "log, the event log, releases with their arguments, and where a rollout was. Tokens, keys and "
    "passwords are masked; prompts are in none of it unless an engine's own log has them. It "
    "changes nothing on hosts.",
    (
        Step("before", "the bundle has a file to go to", place),
        Step("do", "read hosts and write the bundle, mode 0600", collect),
    ),
    group="",
    options={"out": "file of the bundle, .tar.gz"},
)
