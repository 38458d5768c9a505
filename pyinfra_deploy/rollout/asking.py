"""Asking hosts one command of the host program, all at once, from a command of the operator's."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.rollout import child

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyinfra_deploy.settings.fleet import Fleet

DEPLOY = Path(__file__).resolve().parents[1] / "deploys" / "call_hosts.py"
TIMEOUT_SECONDS = 120
NOT_REACHED = "the host was not reached"


class Answers(dict[str, dict[str, Any]]):
    """{host: its answer}. refused: {host: {what, why, fix, detail}}, of those that said no. lost:
    {host: why}, of those that did not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, dict[str, Any]] = {}
        self.lost: dict[str, str] = {}

    @property
    def missing(self) -> list[str]:
        return sorted({*self.refused, *self.lost})

    def problem(self, host: str) -> str:
        """Why a host has no answer, in words; empty for one that has."""
        if host in self.lost:
            return self.lost[host]
        said = self.refused.get(host)
        if said is None:
            return ""
        return "\n".join(
            [
                str(said["what"]),
                *([f"  why: {said['why']}"] if said.get("why") else []),
                *([f"  fix: {said['fix']}"] if said.get("fix") else []),
                *(f"  | {line}" for line in said.get("detail") or ()),
            ]
        )


def ask(
    fleet: Fleet,
    command: str,
    requests: Mapping[str, Mapping[str, Any]],
    timeout_seconds: int = TIMEOUT_SECONDS,
    on_line: Callable[[str], None] | None = None,
) -> Answers:
    """requests: by host. Nothing secret: they lie in files of this user while it lasts."""
    answers = Answers()
    if not requests:
        return answers
    with tempfile.TemporaryDirectory(prefix="fleet-calls-") as name:
        directory = Path(name)
        for part in ("requests", "answers"):
            (directory / part).mkdir()
        for host, request in requests.items():
            document = {
                "command": command, "request": dict(request), "timeout_seconds": timeout_seconds,
            }  # fmt: skip
            (directory / "requests" / f"{host}.json").write_text(json.dumps(document))
        line = child.command_line(fleet, list(requests), DEPLOY, {"calls": name})
        ran = child.run(line, fleet.root, {}, on_line)
        for host in requests:
            _take(answers, host, directory / "answers" / f"{host}.json", fleet, ran)
    return answers


def _take(answers: Answers, host: str, path: Path, fleet: Fleet, ran: child.Ran) -> None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        said = ran.about(shown_name(fleet, host), 3)
        answers.lost[host] = "; ".join(said) or NOT_REACHED
        return
    if "answer" in found:
        answers[host] = found["answer"]
    elif "refused" in found:
        answers.refused[host] = found["refused"]
    else:
        answers.lost[host] = f"the connection was lost ({found.get('lost')})"


def shown_name(fleet: Fleet, host: str) -> str:
    """How pyinfra calls a host in what it prints."""
    return "@local" if fleet.hosts[host].is_local else host
