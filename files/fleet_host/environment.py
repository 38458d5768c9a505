"""The environment job: a Python environment from a lock, built at its final path.

Scripts in bin/ hold the environment's absolute path, so it cannot be built elsewhere and renamed.
Instead it is complete only when .fleet-complete.json is in it, which is written last, after a sync
of the file system. A directory without that file is what a crash left, and is built anew.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import (
    SCHEMA_VERSION,
    child,
    conda,
    durable,
    events,
    installer,
    layout,
    locking,
    wheel_check,
    wheels_wanted,
)
from .environment_space import (
    begin_unsynced,
    check_space,
    drop_doubtful_cache,
    end_unsynced,
    full,
    present_share,
)
from .environment_spec import COMPLETE, Wanted, read_spec
from .errors import HostError
from .staging import free_bytes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from .status import Progress

PROBE = """
import importlib, json, sys
missing = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        missing.append([name, str(error)])
print(json.dumps({"version": sys.version.split()[0], "missing": missing}))
"""


def run(spec: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{state: built|present, path, digest, python, versions, size_bytes, seconds}."""
    if "miniforge" in spec:
        from . import miniforge  # which needs this module

        return miniforge.run(spec, progress)
    wanted = read_spec(spec)
    check_parent(wanted.path)
    with held(wanted.path):
        record = read_record(wanted.path)
        if record is not None:
            if record.get("digest") != wanted.digest():
                raise HostError(
                    f"{wanted.path} holds another environment",
                    f"it was built from {str(record.get('digest'))[:12]}, this request is "
                    f"{wanted.digest()[:12]}. A complete environment is never changed, since a "
                    "release may run from it.",
                    "Give the new one a name of its own.",
                )
            check_result(wanted)
            return {"state": "present", "path": str(wanted.path), **record}
        record = build(wanted, progress)
    return {"state": "built", "path": str(wanted.path), **record}


def read_record(path: Path) -> dict[str, Any] | None:
    """The completion record of an environment, or None when it is not complete: a record that is
    cut off or no record at all says nothing of what is there."""
    record = durable.read_object(path / COMPLETE)
    if record is None:
        return None
    if record.get("schema", 0) > SCHEMA_VERSION:
        raise HostError(
            f"{path} was built by a newer program",
            f"its record has schema {record['schema']}, this program knows {SCHEMA_VERSION}.",
            "Deploy with the newer version.",
        )
    return record


def held(path: Path) -> AbstractContextManager[None]:
    """Two jobs with different ids but one path exclude each other."""
    return locking.held(
        path.with_name(f".{path.name}.lock"),
        f"{path} is being built already",
        "Wait for it: 'systemctl list-units \"llm-environment@*\"' shows which job it is.",
    )


def check_parent(path: Path) -> None:
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise HostError(
            f"nothing can be built at {path}",
            f"{path.parent} "
            + ("is not writable here." if path.parent.is_dir() else "does not exist."),
            "Run the deploy, which makes it for the user llm-build; check that its file system is "
            "mounted, and not read-only after an error (see 'dmesg').",
        )


def build(wanted: Wanted, progress: Progress) -> dict[str, Any]:
    """Build it and return its completion record, durably written last."""
    started = time.monotonic()
    progress.phase("check", message=str(wanted.path))
    cache = Path(os.environ.get("CACHE_DIRECTORY", str(layout.cache_root() / "llm-environment")))
    temporary = cache / f"tmp-{wanted.path.parent.name}-{wanted.path.name}"
    python_version = check_interpreter(wanted) if wanted.conda is None else ""
    if wanted.sources.wheelhouse is not None:
        wheel_check.check_place(wanted.sources.wheelhouse)
    if wanted.path.exists():
        progress.log(f"removed {wanted.path}: it was never completed")
        durable.remove_tree(wanted.path)
    if drop_doubtful_cache(wanted.path.parent):
        progress.log("removed uv's cache: a build was under way at a power cut")
    sizes = wanted.wheel_bytes if wanted.installer == "uv" else {}
    present = present_share(wanted.path.parent, wanted.packages, sizes)
    check_space(wanted, cache, wanted.cache_bytes_needed, present)
    begin_unsynced(wanted.path)
    durable.remove_tree(temporary)
    durable.make_directories(temporary, mode=0o700)
    durable.make_directories(cache / "home", mode=0o700)
    of_conda: dict[str, Any] = {}
    try:
        if wanted.conda is None:
            make_venv(wanted, progress, cache, temporary)
        else:
            python_version, made = conda.create(
                wanted.conda, wanted.path, wanted.python.name.removeprefix("python"),
                progress, cache, temporary, wheels_wanted.reminder(wanted.sources.wheelhouse),
            )  # fmt: skip
            of_conda = {"conda": made}
        install(wanted, progress, cache, temporary)
    finally:
        durable.remove_tree(temporary)
    progress.phase("finish", message="application files, modes, checks")
    for relative, content in wanted.files.items():
        target = wanted.path / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    versions = check_result(wanted)
    size = open_to_readers(wanted.path)
    progress.phase("sync", message="writing to disk")
    sync_file_system(wanted.path)
    end_unsynced(wanted.path)
    record = {
        "schema": SCHEMA_VERSION,
        "digest": wanted.digest(),
        "requirements_sha256": hashlib.sha256(wanted.requirements.encode()).hexdigest(),
        "python": python_version,
        "interpreter": str(wanted.python),
        "installer": wanted.installer,
        "versions": versions,
        "size_bytes": size,
        "seconds": round(time.monotonic() - started, 1),
        "built": events.utc_now(),
        **of_conda,
    }
    durable.write_json(wanted.path / COMPLETE, record)
    durable.fsync_directory(wanted.path.parent)
    return record


def check_interpreter(wanted: Wanted) -> str:
    """The interpreter's version. HostError when it cannot make an environment that others can run.

    ctypes: vLLM needs it and python3-minimal lacks it. Debian moves ensurepip into pythonX.Y-venv.
    """
    python = wanted.python
    if not python.is_file() or not os.access(python, os.X_OK):
        raise HostError(
            f"there is no interpreter {python}",
            "the file does not exist or is not executable.",
            f"Install it ('apt-get install {python.name} {python.name}-venv'), or set "
            "runtime.python to a version that the distribution has.",
        )
    refuse_private(python)
    modules = ["venv", "ctypes", "ssl"] + (["ensurepip"] if wanted.installer == "pip" else [])
    done = subprocess.run(
        [str(python), "-I", "-c", PROBE, *modules],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise HostError(
            f"{python} does not work",
            f"it ended with {child.exit_words(done.returncode)}.",
            "Reinstall it.",
            done.stderr.splitlines()[-10:],
        )
    found = json.loads(done.stdout)
    if found["missing"]:
        names = ", ".join(name for name, _ in found["missing"])
        package = "-".join(re.findall(r"python\d+(?:\.\d+)?", python.name)[:1]) or "python3"
        raise HostError(
            f"{python} lacks {names}",
            "Debian and Ubuntu split the standard library over several packages.",
            f"Run 'apt-get install {package} {package}-venv' (the deploy installs python3-venv).",
            [f"{name}: {why}" for name, why in found["missing"]],
        )
    version: str = found["version"]
    return version


def refuse_private(python: Path) -> None:
    """Refuse an interpreter that the services' users cannot reach, such as one in a home."""
    for directory in python.resolve().parents:
        if not directory.stat().st_mode & 0o001:
            raise HostError(
                f"{python} cannot be used by services",
                f"it lies below {directory}, which other users may not enter.",
                "Use the distribution's interpreter in /usr/bin.",
            )


def make_venv(wanted: Wanted, progress: Progress, cache: Path, temporary: Path) -> None:
    progress.phase("venv", message=f"{wanted.python} -m venv")
    argv = [str(wanted.python), "-I", "-m", "venv", str(wanted.path)]
    if wanted.installer == "uv":
        argv.insert(-1, "--without-pip")
    ended = child.run(
        argv,
        env=installer.environment(cache, temporary, wanted.path.parent, wanted.sources),
        cwd=temporary,
        on_poll=wheels_wanted.reminder(wanted.sources.wheelhouse),
        stall_seconds=installer.STALL_SECONDS,
        poll_seconds=0.2,
        on_line=progress.log,
    )
    if ended.returncode != 0 or ended.stalled:
        what = f"no environment could be made at {wanted.path}"
        no_room = full(what, [wanted.path.parent, cache], ended.tail)
        raise no_room or installer.failure(ended, what, wanted.masked, "venv")


def install(wanted: Wanted, progress: Progress, cache: Path, temporary: Path) -> None:
    """Run the installer; progress is how many of the lock's packages are in place."""
    lock, index = temporary / "lock.txt", temporary / "sources.txt"
    durable.write_file(lock, wanted.requirements, mode=0o600)
    durable.write_file(index, installer.index_lines(wanted.sources), mode=0o600)
    files = [index, lock] if index.stat().st_size else [lock]
    total = len(wanted.packages)
    progress.phase("install", total=total, unit="packages", message=wanted.installer)

    def poll() -> tuple[int, int, int]:
        done = sum(1 for _ in wanted.path.glob("lib/python*/site-packages/*.dist-info"))
        progress.advance(min(done, total))
        # Downloads and unpacking print nothing for minutes; the disk shows that they go on.
        return done, free_bytes(cache), free_bytes(wanted.path.parent)

    def take(line: str) -> None:
        shown = wanted.masked(line)
        progress.log(shown)
        if installer.is_progress(shown):
            progress.say(shown.strip()[:200])

    if wanted.installer == "uv" and not os.access(str(wanted.uv), os.X_OK):
        raise HostError(
            f"uv cannot be run at {wanted.uv}",
            "there is no executable file.",
            "Run the deploy, which installs it, or set runtime.installer to pip.",
        )
    python = wanted.path / "bin" / "python"
    ended = child.run(
        installer.command(wanted.installer, wanted.uv, python, files, wanted.sources.arguments),
        env=installer.environment(cache, temporary, wanted.path.parent, wanted.sources),
        cwd=temporary,
        on_poll=poll,
        stall_seconds=installer.STALL_SECONDS,
        on_line=take,
    )
    if ended.returncode != 0 or ended.stalled:
        what = f"the packages of {wanted.path} could not be installed"
        failure = installer.failure(ended, what, wanted.masked, wanted.installer)
        no_room = full(what, [wanted.path.parent, cache], failure.detail)
        place = wanted.sources.wheelhouse
        if no_room is not None or place is None or ended.stalled:
            raise no_room or failure
        raise wheel_check.explain(place, wanted.requirements, failure.detail, what) or failure


def check_result(wanted: Wanted) -> dict[str, str]:
    """{distribution: version} of all that is installed. HostError for what is not as expected."""
    site_packages = [str(path) for path in wanted.path.glob("lib/python*/site-packages")]
    versions = {
        installer.normalised(found.metadata["Name"]): found.version
        for found in importlib.metadata.distributions(path=site_packages)
    }
    problems = [
        f"{name}: expected {version}, found {versions.get(installer.normalised(name), 'none')}"
        for name, version in wanted.expect.items()
        if versions.get(installer.normalised(name)) != version
    ]
    problems += [
        f"bin/{name} is missing"
        for name in wanted.commands
        if not os.access(wanted.path / "bin" / name, os.X_OK)
    ]
    if problems:
        raise HostError(
            f"{wanted.path} is not what was asked for",
            f"{problems[0]}; {len(problems)} such problems.",
            "If the lock and the settings disagree, correct the version or lock again. If it was "
            "complete before, somebody changed it: remove the directory, then deploy again.",
            problems,
        )
    return dict(sorted(versions.items()))


def open_to_readers(path: Path) -> int:
    """Make all of it readable by everybody and writable by its owner only; its size in bytes."""
    size = 0
    for root, _, names in os.walk(path):
        Path(root).chmod(0o755)
        for name in names:
            file = Path(root, name)
            if file.is_symlink():
                continue
            found = file.stat()
            size += found.st_blocks * 512
            mode = 0o755 if found.st_mode & 0o100 else 0o644
            if found.st_mode & 0o7777 != mode:
                file.chmod(mode)
    return size


def sync_file_system(path: Path) -> None:
    """syncfs(2) by way of coreutils: tens of thousands of fsyncs would take minutes."""
    done = subprocess.run(
        ["sync", "-f", str(path)], capture_output=True, text=True, timeout=3600, check=False
    )
    if done.returncode != 0:
        raise HostError(
            f"{path} could not be written to disk",
            done.stderr.strip() or f"sync ended with exit code {done.returncode}.",
            "Look for disk errors in 'dmesg', then start again.",
        )
