"""Running the real modelscope client into a staging directory.

Observed with 1.40.2: it exits 0 with a corrupt file when the listing has no hash, and with a model
that lacks a shard; it never removes stale files, never fsyncs, and hashes complete files again. So
it is only asked for files that are missing, and its exit code 0 is not believed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import child
from .errors import HostError
from .status import size_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from .listing import FileEntry
    from .proxies import Proxy
    from .status import Progress

# Partial files of one listed file X: X.incomplete, and in parallel mode X_<start>_<end> parts and
# X.parallel_tmp (parallel mode is off below, an operator's own client may have used it).
PARTIAL = ".incomplete"
NOT_IN_A_PATTERN = re.compile(r"[*?\[\],]|^-")
NO_SPACE_LEFT_BYTES = 16 * 1024 * 1024


# How the client (modelscope_hub 0.5.1) prints the answers of a hub, and what it thinks of a file.
REFUSED = re.compile(r"\[E\d+\] \[(401|403|404)\]")
NOT_AS_LISTED = re.compile(r"\[E2020\]|Hash mismatch")
DAMAGED = "damaged"


@dataclass(frozen=True)
class ClientSettings:
    """How the client is run. home: its own, so that nobody else's token or cache is used."""

    program: Path
    endpoint: str
    token: str | None
    files_at_once: int
    file_timeout_seconds: int
    stall_timeout_seconds: float
    home: Path
    proxy: Proxy | None = None


def environment(settings: ClientSettings) -> dict[str, str]:
    """The client's environment: this unit's (proxies, CA files) with the client's own set."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MODELSCOPE_", "PYTHON")) and name != "CREDENTIALS_DIRECTORY"
    }
    own = {
        "HOME": str(settings.home),
        "TMPDIR": str(settings.home / "tmp"),
        "LANG": "C.UTF-8",
        "MODELSCOPE_ENDPOINT": settings.endpoint,
        "MODELSCOPE_CACHE": str(settings.home / "cache"),
        "MODELSCOPE_HOME": str(settings.home / "modelscope"),
        # A probe of the cloud's metadata address, which bare metal does not have.
        "MODELSCOPE_DOWNLOAD_INTRA_CLOUD": "false",
        # Per file, retries and hashing included; the default of one hour fails a 5 GB shard below
        # 1.4 MB/s.
        "MODELSCOPE_DOWNLOAD_TOTAL_TIMEOUT": str(settings.file_timeout_seconds),
        # Parallel ranges write each file twice.
        "MODELSCOPE_DOWNLOAD_PARALLEL_WORKERS": "1",
        "MODELSCOPE_NO_DEPRECATION_WARNINGS": "1",
    }
    if settings.proxy is not None:
        own.update(settings.proxy.environment())
    if settings.token:
        own["MODELSCOPE_API_TOKEN"] = settings.token
    return {**kept, **own}


def arguments(
    settings: ClientSettings,
    model_id: str,
    revision: str,
    directory: Path,
    wanted: Iterable[FileEntry] | None,
) -> list[str]:
    """The command line; wanted None is everything.

    Wanted files are named by --include: unlike positional names, those are fetched in parallel.
    Names that a pattern would misread mean fetching without it.
    """
    argv = [str(settings.program), "download", "--model", model_id, "--revision", revision]
    argv += ["--local_dir", str(directory), "--max-workers", str(settings.files_at_once)]
    names = [entry.path for entry in wanted or ()]
    if names and not any(NOT_IN_A_PATTERN.search(name) for name in names):
        argv += ["--include", *names]
    return argv


def present_bytes(directory: Path, entries: Iterable[FileEntry]) -> int:
    """Bytes of the listed files on disk, partial ones included, at most what each should have."""
    total = 0
    for entry in entries:
        for path in (directory / entry.path, directory / (entry.path + PARTIAL)):
            try:
                total += min(path.lstat().st_size, entry.size_bytes)
            except OSError:
                continue
            break
    return total


class Arrivals:
    """Says of each file in the journal that it has arrived, once; knows which are on their way."""

    def __init__(self, directory: Path, entries: Iterable[FileEntry], progress: Progress) -> None:
        self._directory = directory
        self._progress = progress
        self._coming = {entry.path: entry for entry in entries}
        self._look()

    def _look(self) -> list[FileEntry]:
        """The files that have got their final name since the last look."""
        found = [it for it in self._coming.values() if (self._directory / it.path).exists()]
        for entry in found:
            del self._coming[entry.path]
        return found

    def look(self) -> None:
        for entry in self._look():
            left = f"; {len(self._coming)} to come" if self._coming else ""
            self._progress.journal(f"arrived: {entry.path}, {size_words(entry.size_bytes)}{left}")
        in_flight = []
        for entry in self._coming.values():
            try:
                done = (self._directory / (entry.path + PARTIAL)).lstat().st_size
            except OSError:
                continue
            in_flight.append({"path": entry.path, "done": done, "total": entry.size_bytes})
        self._progress.files(in_flight)


def check_program(program: Path) -> None:
    if not program.is_file() or not os.access(program, os.X_OK):
        raise HostError(
            f"the modelscope client {program} cannot be run",
            "there is no executable file.",
            "Deploy the tools environment first (the deploy does it before the model).",
        )


def fetch(
    settings: ClientSettings,
    model_id: str,
    revision: str,
    directory: Path,
    entries: tuple[FileEntry, ...],
    wanted: list[FileEntry] | None,
    progress: Progress,
    on_tick: Callable[[], None] | None = None,
) -> child.Ended:
    """Run the client once for the wanted files (None: all), with progress over the entries.
    on_tick: called about once a second; what it raises ends the client."""
    for path in (settings.home, settings.home / "tmp"):
        path.mkdir(mode=0o700, exist_ok=True)
    argv = arguments(settings, model_id, revision, directory, wanted)

    arrivals = Arrivals(directory, entries, progress)

    def poll() -> int:
        have = present_bytes(directory, entries)
        arrivals.look()
        progress.advance(have)
        if on_tick is not None:
            on_tick()
        return have

    return child.run(
        argv,
        env=environment(settings),
        cwd=settings.home,
        on_poll=poll,
        stall_seconds=settings.stall_timeout_seconds,
        # The client prints its bars and retries for ever while no byte comes: only bytes count.
        output_is_activity=False,
        on_line=lambda line: progress.log(f"modelscope: {_masked(line, settings.token)}"),
    )


def out_of_space(ended: child.Ended, free_bytes: int) -> bool:
    return child.says_no_space(ended.tail) or free_bytes < NO_SPACE_LEFT_BYTES


def refusal_in(tail: list[str]) -> str | None:
    """What the client says that another run would not change: "401", "403" or "404" of the hub, or
    DAMAGED, where a file is not the listed one. None where it is an outage, which may end."""
    for line in reversed(tail):
        if found := REFUSED.search(line):
            return found[1]
    return DAMAGED if any(NOT_AS_LISTED.search(line) for line in tail) else None


def failure(
    settings: ClientSettings, ended: child.Ended, what: str, missing: list[str], free_bytes: int
) -> HostError:
    """Why the client did not bring all files, in words, with its last lines."""
    tail = [_masked(line, settings.token) for line in ended.tail[-20:]]
    short = f"{len(missing)} files are missing, {missing[0]} first" if missing else "files are late"
    if ended.stalled:
        return HostError(
            f"{what} stands still",
            f"no byte arrived for {settings.stall_timeout_seconds:.0f} seconds; {short}. "
            "The client was ended.",
            f"Check the way to {settings.endpoint}, then start again: it resumes. If the hub is "
            "only slow, raise model.stall_timeout_seconds.",
            tail,
        )
    if out_of_space(ended, free_bytes):
        return HostError(
            f"{what} ran out of disk space",
            f"{free_bytes >> 20} MiB are free below {settings.home.parent}; {short}.",
            "Free space on that file system, then start again: it resumes.",
            tail,
        )
    refusal = refusal_in(ended.tail)
    if refusal in ("401", "403"):
        given = "model.token is not accepted" if settings.token else "model.token is not set"
        return HostError(
            f"{what} is refused by {settings.endpoint}",
            f"it answered {refusal}, and {given}; {short}.",
            "Set model.token to a token that may read this model (private and gated ones need "
            "it), then deploy again: what is here is kept.",
            tail,
        )
    if refusal == "404":
        return HostError(
            f"{settings.endpoint} does not have what {what} needs",
            f"it answered 404: model.id, model.revision or a file of it is not there; {short}.",
            "Check model.id and model.revision (upper and lower case count), lock it anew if it "
            "is locked and the hub has removed the commit; some hubs answer 404 for a private "
            "model when model.token is missing.",
            tail,
        )
    if refusal == DAMAGED:
        return HostError(
            f"{what} brings files that are not as the hub lists them",
            f"the client refused them: {short}.",
            f"The hub at {settings.endpoint}, or a proxy on the way, has damaged files or is in "
            "the middle of an upload: try later or another endpoint; what is good is kept.",
            tail,
        )
    return HostError(
        f"{what} failed",
        f"the modelscope client ended with {child.exit_words(ended.returncode)}; {short}.",
        f"Its last lines tell why. If they show the hub at {settings.endpoint} failing or a file "
        "that is corrupt there, the hub must be mended; then start again: it resumes.",
        tail,
    )


def _masked(line: str, token: str | None) -> str:
    return line.replace(token, "********") if token else line
