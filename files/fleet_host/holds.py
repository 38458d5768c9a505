"""Holding the NVIDIA driver's packages (apt-mark(8)), and giving up only the holds that are ours.

state/manifest.json lists those that this program has set ("held_packages"), so that a hold of the
operator's is never undone.
"""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Any

from . import durable, events, layout
from .errors import HostError

if TYPE_CHECKING:
    from pathlib import Path

# unattended-upgrades may be at work.
LOCK_SECONDS = 300.0
LOCK_PAUSE_SECONDS = 2.0
CALL_SECONDS = 60.0


def manifest_path() -> Path:
    return layout.llm_root() / "state" / "manifest.json"


def read_manifest() -> dict[str, Any]:
    document = durable.read_json(manifest_path())
    return document if isinstance(document, dict) else {}


def ours() -> list[str]:
    """The packages that this program holds, as recorded."""
    return [str(name) for name in read_manifest().get("held_packages", [])]


def change(hold: list[str], release: list[str]) -> dict[str, list[str]]:
    """Hold some packages and give up others -> {held, released}, as far as each was needed.

    What is held already stays whose it is. Of `release` only holds of ours are given up.
    """
    before = held()
    recorded = ours()
    new = sorted(set(hold) - before)
    old = sorted(set(release) & set(recorded))
    if new:
        # Recorded first: a run that is killed here leaves a record of what is not held, and the
        # next run holds it.
        _record([*recorded, *new])
        _apt_mark("hold", new)
        missing = sorted(set(new) - held())
        if missing:
            raise HostError(
                f"apt-mark did not hold {', '.join(missing)}",
                "it reported success, and 'apt-mark showhold' does not list them.",
                "Look at 'apt-mark showhold' and 'dpkg -l' on the host.",
            )
    if old:
        still = sorted(set(old) & before)
        if still:
            _apt_mark("unhold", still)
        _record([name for name in ours() if name not in old])
    if new or old:
        events.record("driver packages held", held=new, released=old)
    return {"held": new, "released": old}


def _record(names: list[str]) -> None:
    document = read_manifest() | {"held_packages": sorted(set(names))}
    durable.make_directories(manifest_path().parent, mode=0o750)
    durable.write_json(manifest_path(), document, mode=0o640)


def held() -> set[str]:
    """All that are held, whoever did it."""
    return {line.split(":")[0].strip() for line in _apt_mark("showhold", []).splitlines() if line}


def _apt_mark(action: str, names: list[str]) -> str:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            done = subprocess.run(
                ["apt-mark", action, *names],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=CALL_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HostError(
                f"'apt-mark {action}' could not be run", f"{error}.", "Look at apt on the host."
            ) from error
        if done.returncode == 0:
            return done.stdout
        lines = done.stderr.strip().splitlines()
        # "dpkg: error: dpkg database is locked by another process" and the like.
        if not any("lock" in line for line in lines) or time.monotonic() > deadline:
            raise HostError(
                f"'apt-mark {action} {' '.join(names)}' failed",
                (lines or ["it printed no reason."])[-1],
                "Mend what it names (dpkg --configure -a, a full disk), then run again.",
                lines,
            )
        time.sleep(LOCK_PAUSE_SECONDS)
