"""Running the deploy as an operator does, and reading what came of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Ran:
    """One finished run. `log` is what the operator saw; `changed` counts successful operations
    with a change, by host."""

    code: int
    log: str
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> set[str]:
        if "No hosts remaining!" in self.log:  # then pyinfra prints no results
            return set(re.findall(r"\[([^]]+)\] +Connected", self.log))
        return set(self.results.get("failed_hosts", []))

    @property
    def unchanged(self) -> bool:
        """Whether every operation on every host was without a change."""
        operations = self.results.get("operations", [])
        return bool(operations) and not any(
            operation["success"] or operation["error"] for operation in operations
        )

    def finished(self, host: str) -> bool:
        """Whether the last step of the deploy was done on the host, or nothing was to be done."""
        return any(
            host in (*operation["success"], *operation["no_change"])
            and operation["name"].endswith(("Give the host back", "Nothing to change"))
            for operation in self.results.get("operations", [])
        )

    def said(self, *words: str) -> str:
        """AssertionError unless all the words are in the log. Returns the log."""
        missing = [word for word in words if word not in self.log]
        assert not missing, f"not said: {missing}\n--- the log:\n{self.log}"
        return self.log

    def done(self) -> Ran:
        """AssertionError, with the log, unless the run succeeded."""
        assert self.code == 0, f"exit code {self.code}\n--- the log:\n{self.log}"
        return self


def environment() -> dict[str, str]:
    return os.environ | {"PYINFRA_PROGRESS": "off", "NO_COLOR": "1", "COLUMNS": "200"}


def command(inventory: str, *options: str, deploy: str = "deploy.py") -> list[str]:
    return [str(BIN / "pyinfra"), "-y", "--json", *options, inventory, deploy]


@dataclass
class Running:
    """A deploy in the background, in a process group of its own. Its output goes into files: a
    pipe that nobody reads would stop it."""

    process: subprocess.Popen[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    def finish(self, timeout_seconds: float = TIMEOUT_SECONDS) -> Ran:
        self.process.wait(timeout=timeout_seconds)
        return Ran(self.process.returncode, _text(self.stderr), results_of(_text(self.stdout)))

    def has_said(self, words: str) -> bool:
        """Whether the operator has seen the words by now."""
        # A file of its own: the run's position in it is where it writes.
        return words in Path(f"/proc/self/fd/{self.stderr.fileno()}").read_text(errors="replace")

    def kill(self) -> None:
        """kill -9, as the kernel does when memory is short."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def start(root: Path, inventory: str, *options: str) -> Running:
    stdout, stderr = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - Running's
    process = subprocess.Popen(
        command(inventory, *options),
        cwd=root,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    return Running(process, stdout, stderr)


def results_of(stdout: str) -> dict[str, Any]:
    try:
        document = json.loads(stdout)
    except ValueError:
        return {}
    return dict(document.get("results") or {})  # null for --dry


def deploy(root: Path, inventory: str, *options: str) -> Ran:
    return start(root, inventory, *options).finish()


def run(argv: list[str], *, root: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """Another program of the project, such as `fleet`."""
    return subprocess.run(
        argv, cwd=root, env=environment(), capture_output=True, text=True, check=False
    )
