"""Installing Miniforge from an installer whose SHA-256 the operator gave.

The installer is copied or downloaded into a directory that is this build's alone, hashed there, and
that very copy is run: nothing can change in between. `-b -p PREFIX` is its unattended mode; it
writes the prefix into its files, so the directory counts only with the record that comes last.
"""

from __future__ import annotations

import hashlib
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from . import (
    SCHEMA_VERSION,
    child,
    conda,
    conda_consent,
    durable,
    environment,
    environment_space,
    fields,
    layout,
)
from .conda_spec import Conda
from .environment_spec import COMPLETE, NAME
from .errors import HostError, SpecError

if TYPE_CHECKING:
    from .status import Progress

KEYS = {"path", "miniforge", "bytes_needed"}
INSTALLER_KEYS = {"path", "url", "sha256"}
BLOCK_BYTES = 1 << 20
FETCH_SECONDS = 60.0


@dataclass(frozen=True)
class Wanted:
    """source: a path on this host or a URL; neither carries a password (the settings refuse it)."""

    path: Path
    source: str
    sha256: str
    bytes_needed: int


def read_spec(spec: dict[str, Any]) -> Wanted:
    fields.refuse_unknown(spec, KEYS, "Miniforge")
    path = Path(fields.text(spec, "path"))
    if path.parent != layout.llm_root() / "tools" or not NAME.fullmatch(path.name):
        raise SpecError(
            f"Miniforge may not be installed at {path}",
            "whatever is there without a completion record would be removed.",
            f"Use {layout.llm_root()}/tools/NAME.",
        )
    installer = spec["miniforge"]
    if not isinstance(installer, dict):
        raise SpecError("the installer is wrong", "'miniforge' must be an object.", "Correct it.")
    fields.refuse_unknown(installer, INSTALLER_KEYS, "installer")
    source = fields.optional_text(installer, "path") or fields.optional_text(installer, "url")
    if source is None:
        raise SpecError(
            "no installer was named", "it needs a path or a URL.", "Set runtime.conda.miniforge."
        )
    return Wanted(
        path, source, fields.text(installer, "sha256"), fields.whole(spec, "bytes_needed", 0)
    )


def run(spec: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{state: built|present, path, digest, version, size_bytes, seconds}."""
    wanted = read_spec(spec)
    environment.check_parent(wanted.path)
    with environment.held(wanted.path):
        record = environment.read_record(wanted.path)
        if record is not None:
            if record.get("digest") != wanted.sha256:
                raise HostError(
                    f"{wanted.path} was made by another installer",
                    f"by one with SHA-256 {str(record.get('digest'))[:12]}.",
                    "Give the new one a name of its own.",
                )
            conda.check_program(_conda(wanted.path), _cache() / "home")
            return {"state": "present", "path": str(wanted.path), **record}
        record = _install(wanted, progress)
    return {"state": "built", "path": str(wanted.path), **record}


def _conda(prefix: Path) -> Conda:
    return Conda(prefix / "bin" / "conda", "", {}, (), None)


def _cache() -> Path:
    return Path(os.environ.get("CACHE_DIRECTORY", str(layout.cache_root() / "llm-environment")))


def _install(wanted: Wanted, progress: Progress) -> dict[str, Any]:
    started = time.monotonic()
    cache = _cache()
    temporary = cache / f"tmp-tools-{wanted.path.name}"
    environment_space.check_space(wanted, cache)
    durable.remove_tree(temporary)
    durable.make_directories(temporary, mode=0o700)
    durable.make_directories(cache / "home", mode=0o700)
    try:
        installer = _verified_copy(wanted, temporary, progress)
        if wanted.path.exists():
            progress.log(f"removed {wanted.path}: it was never completed")
            durable.remove_tree(wanted.path)
        _run(wanted, installer, progress, cache, temporary)
    finally:
        durable.remove_tree(temporary)
    progress.phase("finish", message="modes, checks")
    version = conda.check_program(_conda(wanted.path), cache / "home")
    size = environment.open_to_readers(wanted.path)
    progress.phase("sync", message="writing to disk")
    environment.sync_file_system(wanted.path)
    record = {
        "schema": SCHEMA_VERSION,
        "digest": wanted.sha256,
        "source": wanted.source,
        "versions": {"conda": version},
        "size_bytes": size,
        "seconds": round(time.monotonic() - started, 1),
    }
    durable.write_json(wanted.path / COMPLETE, record)
    durable.fsync_directory(wanted.path.parent)
    return record


def _verified_copy(wanted: Wanted, temporary: Path, progress: Progress) -> Path:
    """The installer, in our own directory and with the right hash."""
    # Miniforge's installer looks at its own name no further than that it ends in .sh.
    target = temporary / "miniforge.sh"
    digest = hashlib.sha256()
    is_url = "://" in wanted.source
    progress.phase("download" if is_url else "copy", unit="bytes", message=wanted.source)
    done = 0
    try:
        with _open(wanted.source) as source, target.open("wb") as copy:
            while block := source.read(BLOCK_BYTES):
                digest.update(block)
                copy.write(block)
                done += len(block)
                progress.advance(done)
    except (OSError, urllib.error.URLError) as error:
        full = getattr(error, "errno", None) == 28
        raise HostError(
            f"the installer {wanted.source} cannot be had",
            f"{error}.",
            "Free space where the unit's cache is (see 'df -h /var/cache')."
            if full
            else "Check runtime.conda.miniforge, and the way there from this host; a file on the "
            "host has to be readable by everybody.",
        ) from error
    if digest.hexdigest() != wanted.sha256:
        raise HostError(
            f"the installer {wanted.source} is not the one that was meant",
            f"its SHA-256 is {digest.hexdigest()}, the settings say {wanted.sha256}. It was not "
            "run.",
            "Compare with the SHA-256 that is published beside it; correct "
            "runtime.conda.miniforge.sha256 only when you trust the file.",
        )
    return target


def _open(source: str) -> IO[bytes]:
    if "://" not in source:
        return Path(source).open("rb")
    opened: IO[bytes] = urllib.request.urlopen(source, timeout=FETCH_SECONDS)  # noqa: S310
    return opened


def _run(wanted: Wanted, installer: Path, progress: Progress, cache: Path, temporary: Path) -> None:
    progress.phase("install", message=f"bash miniforge.sh -b -p {wanted.path}")

    def poll() -> object:
        return sum(1 for _ in wanted.path.glob("pkgs/*")), sum(1 for _ in wanted.path.glob("*"))

    ended = child.run(
        ["bash", str(installer), "-b", "-p", str(wanted.path)],
        env=conda_consent.environment(cache, temporary),
        cwd=temporary,
        on_poll=poll,
        stall_seconds=conda.STALL_SECONDS,
        poll_seconds=0.2,
        on_line=progress.log,
    )
    if ended.returncode == 0 and not ended.stalled:
        return
    what = f"Miniforge could not be installed at {wanted.path}"
    if child.says_no_space(ended.tail):
        fix = "Free space where llm_root is (see 'df -h'), then start again."
        raise HostError(what, "no space is left on the disk.", fix, ended.tail)
    how = "standing still" if ended.stalled else child.exit_words(ended.returncode)
    raise HostError(
        what,
        f"its installer ended with {how}.",
        "The lines below are the last that it printed.",
        ended.tail,
    )
