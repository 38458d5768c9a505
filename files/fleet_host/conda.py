"""The part of an environment that conda makes: its Python and libraries, from an explicit lock.

conda writes the prefix into its files, so it is made at its final path, as a venv is; what makes it
count is environment.py's record, which comes last. The packages go into a cache of this one build,
beside the environment, where conda can hard-link them (a link cannot leave the mount); a cache that
outlived a kill could hold half a package that conda takes for a whole one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

from . import child, conda_consent, durable
from .errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .conda_spec import Conda
    from .status import Progress

STALL_SECONDS = 1800.0
HISTORY = "conda-meta/history"
# Packages of one build: this and the environment's name, beside it.
PACKAGES = ".conda-pkgs-"
PROBE = "import json, ssl, ctypes, sys; print(json.dumps(list(sys.version_info[:3])))"


def create(
    conda: Conda,
    prefix: Path,
    python: str,
    progress: Progress,
    cache: Path,
    temporary: Path,
    waiting: Callable[[], None],
) -> tuple[str, dict[str, Any]]:
    """Make the prefix; (its Python's version, what the record keeps of it). python: "3.12".
    waiting: called often while it takes its time.

    `conda create --yes` deletes an environment that is there, and without --yes it exits 0 having
    done nothing: so there must be nothing, and afterwards all has to be there.
    """
    version = check_program(conda, cache / "home")
    if os.path.lexists(prefix):
        raise HostError(
            f"{prefix} is there already",
            "'conda create' would delete it."
            if (prefix / HISTORY).exists()
            else "conda creates environments in new directories only.",
            "Deploy again: what is not complete is removed first. If somebody made it by hand, "
            "move it away.",
        )
    packages = prefix.with_name(PACKAGES + prefix.name)
    env = {
        **conda_consent.environment(cache, temporary),
        "CONDA_PKGS_DIRS": str(packages),
    }
    progress.phase("terms", message=", ".join(conda.channels))
    before = conda_consent.settle(conda, env, progress)
    conda_consent.forget_answers(env)
    durable.remove_tree(packages)
    try:
        waiting()
        _run(conda, prefix, env, progress, temporary, waiting)
    finally:
        durable.remove_tree(packages)
    _refuse_silent_acceptance(conda, env, before)
    check_prefix(conda, prefix)
    return check_python(prefix, python), _record(conda, version, before)


def check_program(conda: Conda, home: Path) -> str:
    """conda's version. HostError when it cannot be run."""
    fix = "Correct runtime.conda.prefix; for a conda that the deploy installs, deploy again."
    what = f"conda cannot be run at {conda.program}"
    if not os.access(conda.program, os.X_OK):
        raise HostError(what, "there is no such program, or this user may not run it.", fix)
    env = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(home)}
    try:
        done = subprocess.run(
            [str(conda.program), "--version"],
            env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(what, f"{error}.", fix) from error
    found = re.search(r"conda (\d[\w.]*)", done.stdout)
    if done.returncode != 0 or found is None:
        lines = (done.stdout + done.stderr).splitlines()[-10:]
        raise HostError(what, f"it ended with {child.exit_words(done.returncode)}.", fix, lines)
    return found[1]


def _run(
    conda: Conda,
    prefix: Path,
    env: dict[str, str],
    progress: Progress,
    temporary: Path,
    waiting: Callable[[], None],
) -> None:
    lock = temporary / "conda-lock.txt"
    durable.write_file(lock, conda.lock, mode=0o600)
    argv = [str(conda.program), "create", "--yes", "--prefix", str(prefix), "--override-channels"]
    for channel in conda.channels:
        argv += ["--channel", channel]
    total = len(conda.packages)
    progress.phase("conda", total=total, unit="packages", message=f"conda create -p {prefix}")

    def poll() -> object:
        waiting()
        done = sum(1 for _ in prefix.glob("conda-meta/*.json"))
        progress.advance(min(done, total))
        return done, sum(1 for _ in prefix.parent.glob(f"{PACKAGES}{prefix.name}/*"))

    ended = child.run(
        [*argv, "--file", str(lock)],
        env=env,
        cwd=temporary,
        on_poll=poll,
        stall_seconds=STALL_SECONDS,
        poll_seconds=0.2,
        on_line=progress.log,
    )
    if ended.returncode != 0 or ended.stalled:
        raise failure(ended, prefix)


# What conda prints -> (why, fix). By the names of its exceptions: its wording changes.
CAUSES: list[tuple[re.Pattern[str], str, str]] = [
    (
        re.compile(r"CondaToSRejectedError"),
        "the terms of a channel were rejected",
        "Take the channel out of runtime.conda.channels.",
    ),
    (
        re.compile(r"ChecksumMismatchError|[Cc]hecksum mismatch|does not match"),
        "a package does not have the hash that the lock names",
        "Do not work around this: either the channel serves a changed file, or the lock was made "
        "from other files. If you trust the channel, make the lock of conda's packages again from "
        "it (docs/runtimes.md) and commit it; else name the channel that it was made from.",
    ),
    (
        re.compile(r"NoSpaceLeftError|No space left on device|Errno 28\b|Disk quota exceeded"),
        "no space is left on the disk",
        "Free space where the environments are (see 'df -h' and 'df -i'), then start again.",
    ),
    (
        re.compile(r"CondaHTTPError|CondaSSLError|ConnectionFailed|HTTP 000|ProxyError"),
        "a channel cannot be reached, or does not have a package of the lock",
        "Check the way to it from the host (a proxy, conda's .condarc), or use a mirror with a "
        "lock made from it; then start again.",
    ),
]


def failure(ended: child.Ended, prefix: Path) -> HostError:
    """Why `conda create` failed, in words with the line that shows it."""
    what = f"conda could not make {prefix}"
    if ended.stalled:
        why = f"it stood still for {STALL_SECONDS:.0f} seconds and was ended."
        return HostError(what, why, "Check the way to its channels.", ended.tail)
    if any("CondaToSNonInteractiveError" in line for line in ended.tail):
        urls = sorted({
            url for line in ended.tail for url in re.findall(r"^- (\S+://\S+)$", line.strip())
        })  # fmt: skip
        error = conda_consent.unaccepted(" and ".join(urls) or "one of its channels")
        return HostError(error.what, error.why, error.fix, ended.tail)
    for pattern, why, fix in CAUSES:
        line = next((line for line in reversed(ended.tail) if pattern.search(line)), None)
        if line is not None:
            return HostError(what, f"{why}: {line[:300]}", fix, ended.tail)
    fix = "The lines below are the last that it printed."
    if ended.returncode == -9:
        fix = "Something killed it, most likely for memory: see 'journalctl -k' on the host."
    why = f"it ended with {child.exit_words(ended.returncode)}."
    return HostError(what, why, fix, ended.tail)


def _refuse_silent_acceptance(
    conda: Conda, env: dict[str, str], before: dict[str, dict[str, Any]]
) -> None:
    """conda accepts by itself where its configuration says so. That is nobody's consent."""
    for channel, now in conda_consent.read_all(conda, env).items():
        if now["accepted"] and now != before[channel]:
            raise HostError(
                f"conda has accepted the terms of {channel} by itself",
                f"it wrote {now['path']}, for which no consent is in the settings.",
                "Look for auto_accept_tos in the host's .condarc files ('conda config "
                "--show-sources') and remove it and that file; then use conda-forge, or record the "
                "consent in runtime.conda.terms.",
            )


def check_prefix(conda: Conda, prefix: Path) -> None:
    """Everything of the lock is in the prefix, by conda's own records."""
    missing = [] if (prefix / HISTORY).is_file() else [f"{HISTORY} is missing"]
    for stem, sha256 in conda.packages.items():
        record = durable.read_json(prefix / "conda-meta" / f"{stem}.json")
        if record is None:
            missing.append(f"{stem} is not installed")
        elif record.get("sha256") not in (None, sha256):
            missing.append(f"{stem} has another hash than the lock")
    if missing:
        raise HostError(
            f"conda ended well, and {prefix} is not what was asked for",
            f"{missing[0]}; {len(missing)} such problems.",
            "Start again; if it is so again, try that conda by hand on the host.",
            missing,
        )


def check_python(prefix: Path, python: str) -> str:
    """The version of the environment's Python, which has to be `python`.x and to work."""
    program = prefix / "bin" / "python"
    what = f"the Python of {prefix} cannot be used"
    fix = "Make conda's lock again, from an environment with that Python."
    try:
        done = subprocess.run(
            [str(program), "-I", "-c", PROBE], capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    except OSError as error:
        raise HostError(what, f"{program}: {error.strerror}.", fix) from error
    if done.returncode != 0:
        lines = done.stderr.splitlines()[-10:]
        raise HostError(what, f"it ended with {child.exit_words(done.returncode)}.", fix, lines)
    found = [str(part) for part in json.loads(done.stdout)]
    if ".".join(found[:2]) != python:
        raise HostError(what, f"it is {'.'.join(found)}, not {python}.", fix)
    return ".".join(found)


def _record(conda: Conda, version: str, terms: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """For whoever asks later on which terms this environment was made."""
    consent = conda.consent
    return {
        "version": version,
        "root": str(conda.root),
        "packages": conda.packages,
        "terms": {url: seen for url, seen in terms.items() if seen["accepted"]},
        "consent": None if consent is None else {
            "accepted_by": consent.accepted_by,
            "accepted_on": consent.accepted_on.isoformat(),
            "channels": list(consent.channels),
        },
    }  # fmt: skip
