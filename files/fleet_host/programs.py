"""Running another program to its end; what went wrong with it, in words, as a HostError."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from .errors import HostError


@dataclass(frozen=True)
class Fixes:
    """What to do when the program is not there, when it does not answer, and when it fails."""

    absent: str
    hangs: str
    fails: str


def output_of(argv: list[str], seconds: float, fixes: Fixes, shown: str = "") -> str:
    """Its stdout. shown: the command as an error is to name it, by default as it is run.

    HostError when it cannot be started, does not end within `seconds`, or ends with another exit
    code than 0: then with the program's own last line.
    """
    words = shown or " ".join(argv)
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise HostError(
            f"'{words}' could not be run", f"there is no {argv[0]} here.", fixes.absent
        ) from error
    except OSError as error:
        raise HostError(f"'{words}' could not be run", f"{error}.", fixes.absent) from error
    except subprocess.TimeoutExpired as error:
        raise HostError(
            f"'{words}' did not answer within {seconds:.0f} seconds",
            f"{argv[0]}, or what it asks, hangs.",
            fixes.hangs,
        ) from error
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise HostError(
            f"'{words}' failed with exit code {done.returncode}",
            (lines or ["it printed no reason."])[-1],
            fixes.fails,
            lines,
        )
    return done.stdout
