"""Reading hosts from a command: pyinfra as a child, with a deploy that changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyinfra_deploy.settings.fleet import Fleet


def command_line(
    fleet: Fleet, hosts: Sequence[str], deploy: Path, data: Mapping[str, str]
) -> list[str]:
    """The command line, run in the repository's root. data: for host.data in the deploy."""
    names = ["@local" if fleet.hosts[host].is_local else host for host in hosts]
    limits = [] if len(names) == len(fleet.hosts) else names
    return [
        sys.executable,
        "-m",
        "pyinfra",
        "-y",
        *(argument for name in limits for argument in ("--limit", name)),
        *(argument for key, value in data.items() for argument in ("--data", f"{key}={value}")),
        f"inventories/{fleet.name}.py",
        str(deploy),
    ]


def run(
    arguments: Sequence[str],
    root: Path,
    timeout_seconds: float,
    on_line: Callable[[str], None] | None = None,
) -> str:
    """What pyinfra printed. Whether a host was read is told by its files, not by the exit code.

    on_line is called with each line as it comes.
    """
    lines: list[str] = []
    with subprocess.Popen(
        arguments,
        cwd=root,
        env=os.environ | {"PYINFRA_PROGRESS": "off", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        timed_out = threading.Event()

        def stop() -> None:
            timed_out.set()
            child.kill()

        timer = threading.Timer(timeout_seconds, stop)
        timer.start()
        try:
            assert child.stdout is not None
            for line in child.stdout:
                lines.append(line)
                if on_line is not None:
                    on_line(line.rstrip("\n"))
        except BaseException:
            child.kill()
            raise
        finally:
            timer.cancel()
    if timed_out.is_set():
        return f"(stopped: it took more than {timeout_seconds:.0f} seconds)"
    return "".join(lines)
