"""Rollouts on the stand-in's hosts, as an operator runs them, and what they leave there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from tests.hosts import pyinfra_run
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell, wait_for
from tests.hosts.pyinfra_run import BIN
from tests.hosts.standin_inventory import NAME, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.hosts.standin_inventory import Checkout

BOTH = (DEBIAN12, DEBIAN13)
# Short enough for tests, long enough to be killed in.
GATES: dict[str, Any] = {
    "golden_prompts": [{"prompt": "Count.", "must_contain": ["one two three"]}],
    "answer_seconds": 5,
    "soak_seconds": 4,
}
PATIENCE_SECONDS = 3600


@dataclass(frozen=True)
class Said:
    code: int
    text: str

    def ended(self, code: int, *words: str) -> Said:
        """AssertionError, with all that was said, unless it ended so."""
        assert self.code == code, f"exit code {self.code}\n{self.text}"
        missing = [word for word in words if word not in self.text]
        assert missing == [], f"not said: {missing}\n{self.text}"
        return self


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    output: IO[bytes]

    def text(self) -> str:
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    def finish(self) -> Said:
        self.process.wait(timeout=PATIENCE_SECONDS)
        return Said(self.process.returncode, self.text())

    def signal(self, number: int) -> Said:
        """As a terminal sends it, to the whole process group."""
        os.killpg(self.process.pid, number)
        return self.finish()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start(checkout: Checkout, *words: str) -> Running:
    """`fleet WORDS` in the background, in a process group of its own."""
    output = tempfile.TemporaryFile()  # noqa: SIM115 - Running's
    process = subprocess.Popen(
        [str(BIN / "fleet"), *words],
        cwd=checkout.root,
        env=pyinfra_run.environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return Running(process, output)


def fleet(checkout: Checkout, *words: str) -> Said:
    return start(checkout, *words).finish()


def rollout(checkout: Checkout, *words: str) -> Said:
    return fleet(checkout, "rollout", NAME, "--yes", *words)


def release_of(host: str) -> str:
    return shell(host, "readlink /srv/llm/engines/main/current").strip().rpartition("/")[2]


def golive(host: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shell(host, "cat /srv/llm/engines/main/golive.json"))
    return found


def in_phase(host: str, *phases: str) -> None:
    """Wait for a go-live that is in one of them."""
    wait_for(lambda: golive(host)["phase"] in phases, 300)


def nothing_is_left(hosts: Sequence[str] = BOTH) -> None:
    """No drain, no lock, no go-live at work or half done, and each engine runs what is current."""
    for host in hosts:
        unit = "systemctl is-active llm-golive@main.service; :"
        wait_for(lambda host=host, unit=unit: shell(host, unit).strip() in ("inactive", "failed"),  # type: ignore[misc]
                 300)  # fmt: skip
        assert shell(host, "ls /run/llm/drain 2>/dev/null; :") == ""
        assert shell(host, "ls /srv/llm/state/lease.json 2>/dev/null; :") == ""
        assert golive(host)["phase"] in ("done", "reverted", "undone")
        started = json.loads(shell(host, "cat /run/llm-engine-main/started.json"))
        assert started["release"] == release_of(host)


def events_of(host: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shell(host, "cat /srv/llm/state/events.jsonl").split("\n")
            if line]  # fmt: skip


def engine_with(seed: int, **behaviour: Any) -> dict[str, Any]:
    """Settings that make another release, which the stand-in serves."""
    args = {"seed": seed, "additional-config": {"start_seconds": 1.0, **behaviour}}
    return {**SETTINGS["engine"], "args": args}
