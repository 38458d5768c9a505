"""Running the machine's programs, with failures as LabError."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Version-manager shims in front of the system's programs make mmdebstrap crawl, and a program
# of the same name elsewhere in PATH is not the one the lab was tested with.
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_SHOWN_LINES = 8


def command_environment() -> dict[str, str]:
    """The caller's environment (proxies!) with the system's PATH and untranslated messages."""
    return {**os.environ, "PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8"}


def last_lines(text: str, count: int = _SHOWN_LINES) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


def try_run(
    argv: Sequence[str], *, input_text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program and leave the judgement of its exit status to the caller."""
    return subprocess.run(
        list(argv),
        input=input_text,
        stdin=subprocess.DEVNULL if input_text is None else None,
        capture_output=True,
        text=True,
        env=command_environment(),
        check=False,
    )


def run_checked(
    argv: Sequence[str],
    *,
    what: str,
    fix: str = "run the same lab command again; if it repeats, run `lab down` and then `lab up`",
    input_text: str | None = None,
) -> str:
    """Run a program and return its stdout; LabError with its last words if it fails."""
    result = try_run(argv, input_text=input_text)
    if result.returncode != 0:
        words = last_lines(result.stderr or result.stdout) or "it printed nothing"
        raise LabError(
            what=f"{what}: `{' '.join(argv)}` failed with exit status {result.returncode}",
            why=words,
            fix=fix,
        )
    return result.stdout
