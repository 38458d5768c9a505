"""What is no longer needed: old releases, and runtimes that no release uses. By count.

What may go is read from the engines' directories each time, never from a list: `current`,
`previous`, a pending go-live and the process that runs name the releases that stay, and these name
the runtimes. A kill in the middle leaves a hidden directory or a runtime without its record, which
count for nothing and are removed by the next run.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import conda, durable, engine, environment_space, events, fields, hold, layout
from .environment_spec import COMPLETE
from .errors import HostError
from .ground import PENDING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEYS = {"keep_releases", "keep_runtimes", "dry"}
REMOVING = ".removing"
LEAST_RELEASES = 2


@dataclass(frozen=True)
class Release:
    """A release on the disk. held: why it must stay, empty when only its age counts."""

    engine: str
    name: str
    path: Path
    runtime: str
    staged_at: float
    held: str


def run(request: dict[str, Any]) -> dict[str, Any]:
    """`prune` {keep_releases, keep_runtimes, dry} -> {changed, releases: [ENGINE/ID], runtimes:
    [name], freed_bytes}. keep_releases: of each engine, those that must stay among them.
    keep_runtimes: in all, those that releases use among them. dry: only tell.
    """
    fields.refuse_unknown(request, KEYS, "prune")
    keep_releases = max(LEAST_RELEASES, fields.whole(request, "keep_releases"))
    keep_runtimes = fields.whole(request, "keep_runtimes")
    dry = request.get("dry") is True
    everything = releases()
    old = old_releases(everything, keep_releases)
    used = {release.runtime for release in everything if release not in old}
    unused = old_runtimes(runtimes(), used, keep_runtimes)
    if dry:
        return _answer(old, unused, 0)
    for leftover in layout.llm_root().glob(f"engines/*/releases/.*{REMOVING}"):
        durable.remove_tree(leftover)
    for release in old:
        doomed = release.path.with_name(f".{release.name}{REMOVING}")
        release.path.rename(doomed)
        durable.fsync_directory(release.path.parent)
        durable.remove_tree(doomed)
    drop_package_caches(layout.llm_root() / "runtimes")
    before = _free_bytes() if unused else 0
    removed = [path for path in unused if remove_runtime(path)]
    if removed:
        drop_cache(layout.llm_root() / "runtimes")
    freed = max(0, _free_bytes() - before) if removed else 0
    answer = _answer(old, removed, freed)
    if answer["changed"]:
        events.record("pruned", releases=answer["releases"], runtimes=answer["runtimes"])
    return answer


def _free_bytes() -> int:
    found = os.statvfs(layout.llm_root())
    return found.f_bavail * found.f_frsize


def _answer(old: list[Release], gone: list[Path], freed_bytes: int) -> dict[str, Any]:
    return {
        "changed": bool(old or gone),
        "releases": [f"{release.engine}/{release.name}" for release in old],
        "runtimes": [path.name for path in gone],
        "freed_bytes": freed_bytes,
    }


def releases() -> list[Release]:
    """Every release of every engine on this host."""
    found = []
    for home in sorted(layout.llm_root().glob("engines/*")):
        held = held_releases(home.name)
        for path in sorted(home.glob("releases/*/release.json")):
            directory = path.parent
            if directory.name.startswith("."):
                continue
            link = directory / "runtime"
            found.append(
                Release(
                    engine=home.name,
                    name=directory.name,
                    path=directory,
                    runtime=link.readlink().name if link.is_symlink() else "",
                    staged_at=path.stat().st_mtime,
                    held=held.get(directory.name, ""),
                )
            )
    return found


def held_releases(name: str) -> dict[str, str]:
    """{release: why it must stay} of one engine."""
    held: dict[str, str] = {}
    golive = durable.read_json(engine.home(name) / "golive.json")
    golive = golive if isinstance(golive, dict) else {}
    if golive.get("phase") in PENDING:
        for key in ("previous", "from", "to"):
            held[str(golive.get(key))] = "a go-live is under way"
    held[str((hold.read(name) or {}).get("kept"))] = "a rollback went back to it"
    held[str(engine.read_started(name).get("release"))] = "runs"
    for link in ("previous", "current"):
        held[str(engine.linked(name, link))] = link
    return held


def old_releases(found: list[Release], keep: int) -> list[Release]:
    """Those beyond `keep` of each engine, the oldest first; never one that is held."""
    old = []
    for name in sorted({release.engine for release in found}):
        mine = [release for release in found if release.engine == name]
        held = sum(bool(release.held) for release in mine)
        free = sorted(
            (release for release in mine if not release.held),
            key=lambda release: (release.staged_at, release.name),
        )
        old += free[: max(0, len(free) - max(0, keep - held))]
    return old


def runtimes() -> list[Path]:
    """Directories of runtimes, complete or not."""
    return sorted(
        path
        for path in (layout.llm_root() / "runtimes").glob("*")
        if path.is_dir() and not path.is_symlink() and not path.name.startswith(".")
    )


def old_runtimes(found: list[Path], used: set[str], keep: int) -> list[Path]:
    """Those beyond `keep` that no release uses, the oldest first, and whatever was never completed.

    The newest unused ones stay: a deploy builds a runtime before its release is staged.
    """
    unused = [path for path in found if path.name not in used]
    broken = [path for path in unused if not (path / COMPLETE).is_file()]
    whole = sorted(
        (path for path in unused if path not in broken),
        key=lambda path: ((path / COMPLETE).stat().st_mtime, path.name),
    )
    spare = max(0, keep - (len(found) - len(unused)))
    return broken + whole[: max(0, len(whole) - spare)]


@contextmanager
def idle(path: Path) -> Iterator[bool]:
    """Whether no job builds this environment; it cannot begin while this lasts.

    The lock is environment.held's, in a directory that another user may write to: this runs as
    root, so no link is followed and nothing is made. Without the file nobody has built here yet.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def remove_runtime(path: Path) -> bool:
    """Its record first, so that it does not count as complete from the first moment on."""
    with idle(path) as nobody_builds:
        if not nobody_builds:
            return False
        durable.remove_file(path / COMPLETE)
        remove_as_owner(path)
        environment_space.end_unsynced(path)
    return True


def drop_cache(beside: Path) -> None:
    """uv's cache holds a link to every file of a removed runtime: only without it they are gone.

    What other runtimes share with it stays theirs. Not while any is being built.
    """
    for lock in beside.glob(".*.lock"):
        with idle(beside / lock.name[1 : -len(".lock")]) as nobody_builds:
            if not nobody_builds:
                return
    remove_as_owner(environment_space.uv_cache(beside))


def drop_package_caches(beside: Path) -> None:
    """What a killed build has left of conda's packages, under a name that is not built again."""
    for cache in beside.glob(f"{conda.PACKAGES}*"):
        with idle(beside / cache.name[len(conda.PACKAGES) :]) as nobody_builds:
            if nobody_builds:
                remove_as_owner(cache)


def remove_as_owner(path: Path) -> None:
    """Remove a tree as the user whose it is: as root, a name that its owner exchanges for a link
    meanwhile would be followed."""
    if not path.exists():
        return
    owner = path.lstat()
    user = owner.st_uid if os.geteuid() == 0 and owner.st_uid != 0 else None
    done = subprocess.run(
        ["rm", "-rf", "--one-file-system", "--", str(path)],
        user=user,
        group=None if user is None else owner.st_gid,
        extra_groups=None if user is None else [],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise HostError(
            f"{path} could not be removed",
            done.stderr.strip()[:300] or f"rm ended with exit code {done.returncode}.",
            "It counts for nothing already. Look at its owner and at the file system ('dmesg'); "
            "the next deploy that changes something tries again.",
        )
    durable.fsync_directory(path.parent)


# --- what is there, for people


def listing(_request: dict[str, Any]) -> dict[str, Any]:
    """`runtime list` -> {runtimes: [...], releases: [...], cache_bytes, wheels_bytes, free_bytes}.

    A runtime: {name, state, size_bytes, seconds, built, python, vllm, used_by}. A release: {engine,
    name, held, runtime, model, model_bytes, staged_at, live_at, live_seconds}: when it last went
    live and how long that took.
    """
    root = layout.llm_root()
    cache = environment_space.uv_cache(root / "runtimes")
    wheels = list(root.glob("wheels/*.whl"))
    lived = went_live()
    everything = releases()
    rows = []
    for path in runtimes():
        record = durable.read_json(path / COMPLETE) or {}
        rows.append(
            {
                "name": path.name,
                "state": "complete" if record else "never completed",
                "size_bytes": record.get("size_bytes"),
                "seconds": record.get("seconds"),
                "built": record.get("built"),
                "python": record.get("python"),
                "vllm": (record.get("versions") or {}).get("vllm"),
                "used_by": [
                    f"{release.engine}/{release.name}"
                    for release in everything
                    if release.runtime == path.name
                ],
            }
        )
    return {
        "runtimes": rows,
        "releases": [_release_row(release, lived) for release in everything],
        "cache_bytes": environment_space.unused_bytes(cache),
        "wheels_bytes": sum(path.stat().st_size for path in wheels),
        "free_bytes": _free_bytes(),
    }


def went_live() -> dict[str, dict[str, Any]]:
    """{ENGINE/RELEASE: the last event of its going live}."""
    try:
        lines = events.events_path().read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    found = {}
    for line in lines:
        if '"went live"' not in line:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut by a power cut; `events verify` tells
        found[f"{event.get('engine')}/{event.get('release')}"] = event
    return found


def _release_row(release: Release, lived: dict[str, dict[str, Any]]) -> dict[str, Any]:
    event = lived.get(f"{release.engine}/{release.name}", {})
    link = release.path / "model"
    model = link.readlink() if link.is_symlink() else None
    record = durable.read_json(model.with_name(f"{model.name}.json")) if model else None
    sizes = [int(row["size"]) for row in (record or {}).get("files") or []]
    return {
        "engine": release.engine,
        "name": release.name,
        "held": release.held,
        "runtime": release.runtime,
        "model": f"{model.parent.name}/{model.name}" if model else None,
        "model_bytes": sum(sizes) or None,
        "staged_at": int(release.staged_at),
        "live_at": event.get("when"),
        "live_seconds": event.get("seconds"),
    }
