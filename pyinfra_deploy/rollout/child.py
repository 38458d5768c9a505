"""pyinfra as a child of a rollout: one at a time, and never alive without its parent."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyinfra_deploy.settings.fleet import Fleet

# prctl(2): a child whose parent has been killed must not go on switching hosts, while another run
# on this machine takes the dead parent's lock over. What has begun on hosts goes on by itself.
PR_SET_PDEATHSIG = 1
# After Ctrl-C pyinfra disconnects from its hosts, one of which may just not answer.
ENDING_SECONDS = 20.0


@dataclass(frozen=True)
class Ran:
    """code: pyinfra's exit code. results: what `--json` printed, empty where it printed nothing."""

    code: int
    lines: tuple[str, ...]
    results: Mapping[str, Any] = field(default_factory=dict)

    def finished(self, host: str) -> bool:
        """Whether the last step of the deploy was done on the host, or nothing was to be done."""
        return host not in self.results.get("failed_hosts", ()) and any(
            host in (*operation["success"], *operation["no_change"])
            and operation["name"].endswith(("Give the host back", "Nothing to change"))
            for operation in self.results.get("operations", ())
        )

    def about(self, host: str, most: int = 20) -> tuple[str, ...]:
        """The last lines that were printed of a host, without its name."""
        found = []
        for line in self.lines:
            head, bracket, rest = line.partition(f"[{host}]")
            if bracket and not head.strip():
                found.append(rest.strip())
        return tuple(found[-most:])


def command_line(
    fleet: Fleet, hosts: Sequence[str], deploy: Path, data: Mapping[str, str]
) -> list[str]:
    """Run in the repository's root. data: for host.data in the deploy."""
    names = ["@local" if fleet.hosts[host].is_local else host for host in hosts]
    return [
        sys.executable, "-m", "pyinfra", "-y", "--json",
        *(word for name in names for word in ("--limit", name)),
        *(word for key, value in data.items() for word in ("--data", f"{key}={value}")),
        f"inventories/{fleet.name}.py",
        str(deploy),
    ]  # fmt: skip


def run(
    arguments: Sequence[str],
    root: Path,
    environment: Mapping[str, str],
    on_line: Callable[[str], None] | None = None,
) -> Ran:
    """KeyboardInterrupt goes on to the child once, which is waited for, and is raised again."""
    lines: list[str] = []
    parent = os.getpid()
    with tempfile.TemporaryFile() as stdout:
        # A session of its own: at Ctrl-C the terminal would tell the child too, a second time.
        child = subprocess.Popen(
            arguments,
            cwd=root,
            env={**os.environ, "PYINFRA_PROGRESS": "off", "NO_COLOR": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=lambda: _die_with(parent),  # noqa: PLW1509 - no threads here
        )
        assert child.stderr is not None
        try:
            for line in child.stderr:
                lines.append(line.rstrip("\n"))
                if on_line is not None:
                    on_line(lines[-1])
            child.wait()
        except BaseException:
            _end(child)
            raise
        finally:
            child.stderr.close()
        stdout.seek(0)
        return Ran(child.returncode, tuple(lines), _results(stdout.read().decode(errors="replace")))


def _die_with(parent: int) -> None:
    # A shell's background ignores it, and so would every child; it is how pyinfra is ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _end(child: subprocess.Popen[str]) -> None:
    if child.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGINT)
    try:
        # Reads what it still says: a full pipe would hold it.
        child.communicate(timeout=ENDING_SECONDS)
    except (subprocess.TimeoutExpired, ValueError, KeyboardInterrupt):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _results(printed: str) -> dict[str, Any]:
    """Empty for what is no result, as after an exception, and for a dry run's null."""
    try:
        found = json.loads(printed)
    except ValueError:
        return {}
    results = found.get("results") if isinstance(found, dict) else None
    return results if isinstance(results, dict) else {}
