"""Bring keys.json to the gateway hosts, and know exactly which of them have it.

pyinfra's exit code alone does not tell: it is 0 after Ctrl-C, and 1 names no host. Its JSON result
does: a host has the file when an operation of the push ended there, none failed, and it never
dropped out. Everything else, also an answer that cannot be read, counts as not reached.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.settings.unreachable import without_exclude

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyinfra_deploy.settings.fleet import Fleet

DEPLOY = Path("pyinfra_deploy/deploys/push_keys.py")
# A hundred hosts take seconds; a connection that hangs (pyinfra #1224) must not hang a revocation.
TIMEOUT_SECONDS = 600.0
_SHOWN_LINES = 40


@dataclass(frozen=True)
class Pushed:
    """Which gateway hosts have the keys now, and which not. `output`: what pyinfra printed."""

    reached: tuple[str, ...]
    missed: tuple[str, ...]
    output: str = ""


def push(fleet: Fleet, timeout_seconds: float = TIMEOUT_SECONDS) -> Pushed:
    """Run the push on all gateway hosts, as a child of its own: pyinfra patches its process."""
    gateways = fleet.groups.get("gateway", [])
    if not gateways:
        return Pushed((), ())
    code, stdout, stderr = _run(command(fleet), fleet.root, timeout_seconds)
    return judge(gateways, code, stdout, stderr)


def command(fleet: Fleet) -> list[str]:
    """The command line, run in the repository's root."""
    return [
        sys.executable,
        "-m",
        "pyinfra",
        "-y",
        "--json",
        "--limit",
        "gateway",
        f"inventories/{fleet.name}.py",
        str(DEPLOY),
    ]


def judge(gateways: Sequence[str], code: int | None, stdout: str, stderr: str) -> Pushed:
    """Read a finished run's result. code None: it was stopped after its time."""
    output = stderr if code is not None else f"{stderr}\n(stopped: it took too long)"
    reached = _reached(stdout) if code is not None else frozenset()
    missed = tuple(host for host in gateways if host not in reached)
    if code != 0 and not missed:
        # Something failed that is not a host's step: nothing is known for sure.
        missed = tuple(gateways)
    return Pushed(tuple(host for host in gateways if host not in missed), missed, output.strip())


def report(pushed: Pushed) -> str:
    """The result for an operator: one line when all is well, else hosts, cause and next move."""
    if not pushed.missed:
        count = len(pushed.reached)
        if not count:
            return "The inventory has no gateway host: nothing to push."
        return f"In force on {count} gateway host{'' if count == 1 else 's'}."
    lines = pushed.output.splitlines()[-_SHOWN_LINES:]
    return "\n".join(
        [
            *(f"  | {without_exclude(line)}" for line in lines),
            f"NOT in force on: {', '.join(pushed.missed)}",
            f"In force on: {', '.join(pushed.reached) or 'no host'}",
        ]
    )


def _run(arguments: list[str], root: Path, timeout_seconds: float) -> tuple[int | None, str, str]:
    environment = os.environ | {"PYINFRA_PROGRESS": "off", "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            arguments,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        printed = error.stderr or b""
        text = printed.decode(errors="replace") if isinstance(printed, bytes) else printed
        return None, "", text
    return done.returncode, done.stdout, done.stderr


def _reached(stdout: str) -> frozenset[str]:
    try:
        results: Any = json.loads(stdout)["results"]
        operations = results["operations"]
        ended = {
            host
            for operation in operations
            for host in (*operation["success"], *operation["no_change"])
        }
        failed = {host for operation in operations for host in operation["error"]}
        return frozenset(ended - failed - set(results["failed_hosts"]))
    except (ValueError, TypeError, KeyError):
        return frozenset()
