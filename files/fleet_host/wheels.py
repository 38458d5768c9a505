"""The wheels job: exactly the wheels that locks name, downloaded into a directory of wheels.

DIRECTORY/*.whl             whole and verified; a name appears only then
DIRECTORY/.incoming/SHA256  what has come of a wheel so far; a later run goes on from there
DIRECTORY/index.html, simple/, SHA256SUMS   see wheel_pages.py

`fleet runtime wheelhouse` runs the same on the control machine.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import re
import shutil
import time
import urllib.error
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from . import durable, fields, locking, pip_configuration, wheel_pages
from .errors import HostError, SpecError
from .installer import Sources
from .staging import free_bytes
from .status import Progress
from .wheel_links import Finder, Link, Reader, masked, reason

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


KEYS = {"directory", "wheels", "index_url", "extra_index_urls", "find_links", "remove_others",
        "keep_seconds"}  # fmt: skip
WHEEL = re.compile(r"[A-Za-z0-9][\w.+-]*\.whl", re.ASCII)
SHA256 = re.compile(r"[0-9a-f]{64}")
CHUNK_BYTES = 1 << 20
AT_ONCE = 4
# Tries without a single new byte.
TRIES = 4
RETRY_PAUSE_SECONDS = 1.0
RANGE_REFUSED = 416
TELL_SECONDS = 5.0
# Pages, the file system's own, and what a page did not say of a size.
SPARE_BYTES = 64 << 20


@dataclass(frozen=True)
class Wheel:
    """A wheel as the lock names it; size_bytes is None where the lock does not say it."""

    file: str
    sha256: str
    size_bytes: int | None


@dataclass(frozen=True)
class Wish:
    directory: Path
    wheels: tuple[Wheel, ...]
    sources: Sources
    remove_others: bool
    # Others that were asked for so lately stay: another run may be installing from them.
    keep_seconds: int

    def part(self, wheel: Wheel) -> Path:
        return self.directory / ".incoming" / wheel.sha256


def read_spec(spec: dict[str, Any]) -> Wish:
    fields.refuse_unknown(spec, KEYS, "wheels")
    directory = Path(fields.text(spec, "directory"))
    if not directory.is_absolute():
        raise SpecError(f"{directory} is no place for wheels", "it is not absolute.", "Correct it.")
    rows = spec.get("wheels")
    if not isinstance(rows, list) or not rows:
        raise SpecError("the spec names no wheels", "'wheels' must be a list.", "Give it.")
    wheels = []
    for row in rows:
        file, sha256 = fields.text(row, "file"), fields.text(row, "sha256")
        if not WHEEL.fullmatch(file) or not SHA256.fullmatch(sha256):
            raise SpecError(
                f"{file!r} with {sha256!r} cannot be downloaded",
                "it is no wheel's name with a SHA-256.",
                "Make the lock with 'fleet runtime lock'.",
            )
        wheels.append(Wheel(file, sha256, fields.whole(row, "size_bytes", None)))
    return Wish(
        directory=directory,
        wheels=tuple(sorted(set(wheels), key=lambda wheel: wheel.file)),
        sources=Sources(
            index_url=fields.optional_text(spec, "index_url"),
            extra_index_urls=fields.texts(spec, "extra_index_urls"),
            find_links=fields.texts(spec, "find_links"),
            arguments=[],
        ),
        remove_others=spec.get("remove_others") is True,
        keep_seconds=fields.whole(spec, "keep_seconds", 0),
    )


def run(spec: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{state: downloaded|present, directory, wheels, downloaded, downloaded_bytes, size_bytes,
    seconds}. HostError for what cannot be had, is not what the lock names, or does not fit."""
    wish = read_spec(spec)
    started = time.monotonic()
    try:
        durable.make_directories(wish.directory / ".incoming")
        with held(wish.directory):
            return {**fill(wish, progress), "seconds": round(time.monotonic() - started, 1)}
    except OSError as error:
        raise _broken(wish.directory, error) from error


def gather(request: dict[str, Any]) -> dict[str, Any]:
    """`wheels gather`: the job's work at once, told line by line on stderr."""
    return run(request, Told(None))


class Told(Progress):
    """For a person who watches: a line now and then."""

    told_at = 0.0

    def advance(self, done: float, message: str | None = None) -> None:
        super().advance(done, message)
        state = self.as_dict()
        if state["unit"] == "bytes" and time.monotonic() - self.told_at > TELL_SECONDS:
            self.told_at = time.monotonic()
            total, rate = state["total"] or done, state["rate"] or 0
            self.log(f"  {done / 1e9:.2f} of {total / 1e9:.2f} GB, {rate / 1e6:.0f} MB/s")


def held(directory: Path) -> AbstractContextManager[None]:
    """One download into a directory at a time."""
    return locking.held(
        directory / ".incoming" / ".lock",
        f"wheels are being downloaded into {directory} already",
        "Wait for it, then run it again: it finds them there.",
    )


def fill(wish: Wish, progress: Progress) -> dict[str, Any]:
    progress.phase("check", message=f"{len(wish.wheels)} wheels in {wish.directory}")
    missing = [wheel for wheel in wish.wheels if not is_there(wish, wheel, progress)]
    removed = tidy(wish, missing)
    downloaded = sum(download_all(wish, missing, progress)) if missing else 0
    known = {wheel.file: wheel.sha256 for wheel in wish.wheels}
    others = {
        file: sha256
        for file, sha256 in wheel_pages.read_sums(wish.directory).items()
        if (wish.directory / file).is_file()
    }
    wheel_pages.write_pages(wish.directory, others | known)
    return {
        "state": "downloaded" if missing else "present",
        "directory": str(wish.directory),
        "wheels": len(wish.wheels),
        "downloaded": len(missing),
        "downloaded_bytes": downloaded,
        "removed": removed,
        "size_bytes": sum((wish.directory / wheel.file).stat().st_size for wheel in wish.wheels),
    }


def is_there(wish: Wish, wheel: Wheel, progress: Progress) -> bool:
    """Whether the wheel is there as the lock names it. A changed one is removed, with a word."""
    path = wish.directory / wheel.file
    if not path.is_file():
        return False
    found = sha256_of(path)
    if found == wheel.sha256:
        if wish.keep_seconds:
            os.utime(path)  # when it was last asked for
        return True
    progress.log(
        f"{wheel.file} has changed on the disk (SHA-256 {found}, the lock says {wheel.sha256}): "
        "removed, to be downloaded again"
    )
    durable.remove_file(path)
    return False


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for chunk in iter(lambda: stream.read(CHUNK_BYTES), b""):
            digest.update(chunk)
    return digest.hexdigest()


def tidy(wish: Wish, missing: list[Wheel]) -> list[str]:
    """Remove parts that nobody will go on with and, where asked, wheels that no lock names."""
    kept = {wheel.sha256 for wheel in missing} | {".lock"}
    for path in (wish.directory / ".incoming").iterdir():
        if path.name not in kept:
            path.unlink()
    if not wish.remove_others:
        return []
    named = {wheel.file for wheel in wish.wheels}
    since = time.time() - wish.keep_seconds
    others = [
        path
        for path in sorted(wish.directory.glob("*.whl"))
        if path.name not in named and not (wish.keep_seconds and path.stat().st_mtime > since)
    ]
    for path in others:
        path.unlink()
    return [path.name for path in others]


def download_all(wish: Wish, missing: list[Wheel], progress: Progress) -> list[int]:
    """Bytes that came for each wheel."""
    environ = dict(os.environ)
    sources, certificates = pip_configuration.complete(wish.sources, environ)
    reader = Reader(certificates)
    finder = Finder(sources, reader)
    progress.phase("find", total=len(missing), unit="packages", message="asking the sources")
    found: list[tuple[Wheel, list[Link]]] = []
    for count, wheel in enumerate(missing, start=1):
        found.append((wheel, finder.find(wheel.file, wheel.sha256)))
        progress.advance(count)
    sizes = {wheel.sha256: wheel.size_bytes or links[0].size_bytes or 0 for wheel, links in found}
    check_space(wish, sizes)
    counter = Counter(progress)
    progress.phase("download", total=sum(sizes.values()), unit="bytes", message="wheels")
    # The largest first: at the end nothing waits for one that has just begun.
    found.sort(key=lambda item: -sizes[item[0].sha256])
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(fetch, wish, wheel, links, reader, counter)
                   for wheel, links in found]  # fmt: skip
        try:
            watch(futures, counter)
        finally:
            counter.stop = True
            for future in futures:
                future.cancel()
    return [future.result() for future in futures]


class Counter:
    """Bytes so far, over all downloads. stop: asks the threads to end."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.done_bytes: dict[str, int] = {}
        self.stop = False


def watch(futures: list[Future[int]], counter: Counter) -> None:
    """Wait for all, report how far they are, and raise the first failure."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.5, return_when=FIRST_EXCEPTION)
        counter.progress.advance(sum(list(counter.done_bytes.values())))
        for future in done:
            future.result()


def check_space(wish: Wish, sizes: dict[str, int]) -> None:
    parts = {
        path.name: path.stat().st_size
        for path in (wish.directory / ".incoming").iterdir()
        if path.name in sizes
    }
    needed = sum(max(0, size - parts.get(sha256, 0)) for sha256, size in sizes.items())
    free = free_bytes(wish.directory)
    if free < needed + SPARE_BYTES:
        raise HostError(
            f"the wheels do not fit into {wish.directory}",
            f"{needed / 1e9:.2f} GB are to be downloaded, {free / 1e9:.2f} GB are free on that "
            "file system.",
            f"Free {(needed + SPARE_BYTES - free) / 1e9:.2f} GB there ('df -h {wish.directory}') "
            "or use another directory, then run it again.",
        )


def fetch(wish: Wish, wheel: Wheel, links: list[Link], reader: Reader, counter: Counter) -> int:
    """Download one wheel from the first place that gives it whole; the bytes that came."""
    failures: list[HostError] = []
    for link in links:
        try:
            return fetch_from(wish, wheel, link, reader, counter)
        except HostError as error:
            failures.append(error)
    first = failures[0]
    first.detail.extend(f"also: {error.what}: {error.why}" for error in failures[1:])
    raise first


def fetch_from(wish: Wish, wheel: Wheel, link: Link, reader: Reader, counter: Counter) -> int:
    part, came = wish.part(wheel), 0
    for attempt in (1, 2):
        begun = part.stat().st_size if part.exists() else 0
        came += persist(part, link, reader, counter, wheel)
        found = sha256_of(part)
        if found == wheel.sha256:
            break
        part.unlink()
        # What an earlier run left may be of another file: once more, from the first byte.
        if not begun or attempt == 2:
            raise HostError(
                f"the wheel {wheel.file} is not the one that the lock names",
                f"expected SHA-256 {wheel.sha256}, found {found} at {masked(link.url)}.",
                "Do not work around this: the place serves a changed or damaged file, or another "
                "wheel of that version. If you trust it, make the lock again from there (fleet "
                "runtime lock --index-url URL LOCK) and commit it. Else bring the lock's own "
                "files: fleet runtime wheelhouse INVENTORY -o wheels/ on a machine that reaches "
                "the lock's index, then set runtime.wheelhouse (docs/offline.md).",
            )
    part.chmod(0o644)
    durable.fsync_file(part)
    part.rename(wish.directory / wheel.file)
    durable.fsync_directory(wish.directory)
    return came


def persist(part: Path, link: Link, reader: Reader, counter: Counter, wheel: Wheel) -> int:
    """stream_into, going on after broken connections as long as bytes come; the bytes that came."""
    came, idle = 0, 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            return came + stream_into(part, link, reader, counter, wheel)
        except (ValueError, OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            after = part.stat().st_size if part.exists() else 0
            came += max(0, after - before)
            idle = 0 if after > before else idle + 1
            if isinstance(error, urllib.error.HTTPError) and error.code == RANGE_REFUSED and before:
                return came  # it was whole already, or is of another file: its hash tells
            if counter.stop or idle >= TRIES or isinstance(error, urllib.error.HTTPError):
                raise HostError(
                    f"the wheel {wheel.file} could not be downloaded",
                    f"{masked(link.url)}: {reason(error)}.",
                    "Run it again: it goes on where it stopped.",
                ) from error
        time.sleep(RETRY_PAUSE_SECONDS * idle)


def stream_into(part: Path, link: Link, reader: Reader, counter: Counter, wheel: Wheel) -> int:
    """Append to the part what is missing of it; the bytes that came over the network."""
    begun = part.stat().st_size if part.exists() else 0
    if link.url.startswith("file:"):
        source = Path(unquote(urlsplit(link.url).path))
        shutil.copyfile(source, part)
        counter.done_bytes[wheel.sha256] = source.stat().st_size
        return 0
    if wheel.size_bytes is not None and begun >= wheel.size_bytes:
        return 0
    headers = {"Accept-Encoding": "identity"}
    if begun:
        headers["Range"] = f"bytes={begun}-"
    came = 0
    with reader.open(link.url, **headers) as response:
        resumed = getattr(response, "status", 200) == 206
        said = getattr(response, "headers", {}).get("Content-Length")
        with part.open("ab" if resumed else "wb") as stream:
            counter.done_bytes[wheel.sha256] = begun if resumed else 0
            while chunk := response.read(CHUNK_BYTES):
                if counter.stop:
                    raise OSError(errno.ECANCELED, "another download failed")
                stream.write(chunk)
                came += len(chunk)
                counter.done_bytes[wheel.sha256] += len(chunk)
    if said is not None and came < int(said):
        raise OSError(errno.EPIPE, "the connection ended in the middle")
    return came


def _broken(directory: Path, error: OSError) -> HostError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HostError(
            f"the wheels could not be written into {directory}",
            "no space is left on the device, or a quota is used up.",
            f"Free space there ('df -h {directory}'), then run it again: it goes on where it "
            "stopped, and nothing half-written counts.",
        )
    return HostError(
        f"the wheels could not be written into {directory}",
        f"{error.filename or directory}: {error.strerror or error}.",
        "Check its owner, its mode and that its file system is mounted writable, then run it "
        "again.",
    )
