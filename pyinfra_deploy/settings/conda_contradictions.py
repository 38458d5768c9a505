"""What of `runtime.conda` contradicts itself, the rest of `runtime`, or its lock file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyinfra_deploy.settings.conda_section import channel_urls
from pyinfra_deploy.settings.lock_header import python_of_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyinfra_deploy.settings.conda_section import Conda
    from pyinfra_deploy.settings.runtime_section import Runtime

    # key path, message, fix (as in contradictions.py, which imports this)
    Contradiction = tuple[tuple[str, ...], str, str]

# A line of an explicit file (CEP 23): the URL of a package, then # and its hash.
_LINE = re.compile(
    r"(?P<channel>\S+)/(?P<subdir>linux-64|noarch)/"
    r"(?P<name>[a-z0-9_.-]+)-(?P<version>[^-/#]+)-[^-/#]+(?:\.conda|\.tar\.bz2)"
    r"(?:#(?P<hash>\S+))?"
)
_SHA256 = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
KEY = ("runtime", "conda")
REMEDY = (
    "make it again: `conda list --explicit --sha256 -p PREFIX` of an environment that you have "
    "tried (docs/runtimes.md)."
)


@dataclass(frozen=True)
class LockedCondaPackage:
    """One line of an explicit lock. sha256: the line has one. url: without the hash."""

    line: int
    channel: str
    name: str
    version: str
    sha256: bool
    url: str


def locked_conda_packages(text: str) -> tuple[list[LockedCondaPackage], list[tuple[int, str]]]:
    """(packages, lines that are none with their numbers) of an @EXPLICIT file."""
    packages, others = [], []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#") or line == "@EXPLICIT":
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            others.append((number, line))
            continue
        hashed = match["hash"] is not None and bool(_SHA256.fullmatch(match["hash"]))
        packages.append(
            LockedCondaPackage(
                number, match["channel"], match["name"], match["version"], hashed,
                line.split("#")[0],
            )
        )  # fmt: skip
    return packages, others


def python_of_conda_lock(text: str) -> str | None:
    """3.12 of the lock's python-3.12.7-...; None where it has no Python, or several."""
    versions = {one.version for one in locked_conda_packages(text)[0] if one.name == "python"}
    if len(versions) != 1:
        return None
    return ".".join(versions.pop().split(".")[:2])


def conda_contradictions(runtime: Runtime, root: Path) -> Iterator[Contradiction]:
    conda = runtime.conda
    if runtime.kind == "conda" and conda is None:
        yield (
            KEY,
            "is missing: with runtime.kind: conda the deploy needs to know which conda, and which "
            "lock of its packages.",
            "add conda with prefix (or miniforge) and lock, or write kind: venv.",
        )
    if conda is None:
        return
    if runtime.kind != "conda":
        yield (
            KEY,
            f"is set, but runtime.kind is {runtime.kind} and would ignore it.",
            "write kind: conda, or remove it.",
        )
    yield from _source(conda)
    yield from _terms(conda)
    try:
        text = (root / conda.lock).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        yield (
            (*KEY, "lock"),
            f"the lock file {conda.lock} cannot be read: {reason}.",
            "make it as docs/runtimes.md tells, or correct the path (relative to the repository).",
        )
        return
    yield from _lock(conda, text)
    yield from _locked_python(runtime, conda, text, root)


def _source(conda: Conda) -> Iterator[Contradiction]:
    if (conda.prefix is None) == (conda.miniforge is None):
        told = "neither prefix nor miniforge" if conda.prefix is None else "prefix and miniforge"
        yield (
            KEY,
            f"has {told}: which conda to use is one of them.",
            "write prefix for a conda that is on the hosts, miniforge to have one installed.",
        )
    installer = conda.miniforge
    if installer is not None and (installer.path is None) == (installer.url is None):
        told = "neither path nor url" if installer.path is None else "path and url"
        yield (
            (*KEY, "miniforge"),
            f"has {told}: the installer is in one place.",
            "write path for a file on the host, url for one to download.",
        )


def _terms(conda: Conda) -> Iterator[Contradiction]:
    if conda.terms is None:
        return
    unused = set(channel_urls(conda.terms.channels)) - set(channel_urls(conda.channels))
    if unused:
        yield (
            (*KEY, "terms", "channels"),
            f"names channels that runtime.conda.channels does not: {', '.join(sorted(unused))}.",
            "add them to runtime.conda.channels if packages come from there, or remove them.",
        )


def _lock(conda: Conda, text: str) -> Iterator[Contradiction]:
    key = (*KEY, "lock")
    packages, others = locked_conda_packages(text)
    if not any(line.strip() == "@EXPLICIT" for line in text.splitlines()):
        yield key, f"the lock file {conda.lock} has no line @EXPLICIT: conda would solve.", REMEDY
        return
    for number, line in others[:1]:
        yield (
            key,
            f"line {number} of {conda.lock} is not the URL of a package for linux-64 or noarch: "
            f"{line[:120]}",
            REMEDY,
        )
    for one in [one for one in packages if not one.sha256][:1]:
        yield key, f"line {one.line} of {conda.lock} ({one.name}) has no SHA-256.", REMEDY
    channels = channel_urls(conda.channels)
    for one in [one for one in packages if one.channel not in channels][:1]:
        yield (
            key,
            f"line {one.line} of {conda.lock} ({one.name}) is of the channel {one.channel}, which "
            "is not in runtime.conda.channels.",
            "add the channel, after reading its terms where it has some, or make the lock from "
            f"these: {', '.join(conda.channels)}.",
        )


def _locked_python(
    runtime: Runtime, conda: Conda, text: str, root: Path
) -> Iterator[Contradiction]:
    key = (*KEY, "lock")
    python = python_of_conda_lock(text)
    vllm_python = _python_of_vllm_lock(root / runtime.lock)
    if python is None:
        yield key, f"the lock file {conda.lock} has not exactly one python.", REMEDY
    elif vllm_python not in (None, python):
        yield (
            key,
            f"the lock file {conda.lock} has Python {python}, and {runtime.lock} was made for "
            f"Python {vllm_python}.",
            "make one of them again for the Python of the other.",
        )
    elif runtime.python is not None and runtime.python != python:
        yield (
            ("runtime", "python"),
            f"is {runtime.python}, and {conda.lock} has Python {python}.",
            f'write python: "{python}" with a runtime.lock for that version, or another lock.',
        )
    names = {one.name for one in locked_conda_packages(text)[0]}
    if runtime.installer == "pip" and "pip" not in names:
        yield (
            ("runtime", "installer"),
            f"is pip, and {conda.lock} has no pip.",
            "write installer: uv, or make the lock from an environment with pip.",
        )


def _python_of_vllm_lock(path: Path) -> str | None:
    try:
        return python_of_lock(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None  # which contradictions.py says
