"""Why an installation from a directory of wheels failed: which wheel is missing or changed.

The installers do not say it: uv unpacks while it reads, and ends with a checksum of the zip format
before it has come to compare hashes; of several missing wheels it names one.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from . import installer, wheel_pages
from .errors import HostError
from .wheel_links import Link, Reader, links_of_directory, links_of_page, reason

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK_BYTES = 1 << 20


def check_place(place: str) -> None:
    """HostError unless a directory of wheels is there and can be read. URLs: only on a failure."""
    path = Path(place)
    if "://" in place or (path.is_dir() and os.access(path, os.R_OK | os.X_OK)):
        return
    raise HostError(
        f"there are no wheels at {place}",
        "it is not a directory." if path.exists() else "it does not exist, or lies in a directory "
        "that the user llm-build may not enter.",
        "Copy there what 'fleet runtime wheelhouse' has written, readable by everybody "
        "(chmod -R a+rX), or correct runtime.wheelhouse.",
    )  # fmt: skip


def explain(place: str, requirements: str, tail: list[str], what: str) -> HostError | None:
    """What is wrong with the wheels at a place, or None when nothing is found.

    A directory is looked at whole, of a URL the wheels that the installer named. tail: its last
    lines.
    """
    locked = installer.locked_hashes(requirements)
    try:
        links, sha256_of, sums = _listed(place)
    except (OSError, ValueError) as error:
        return HostError(
            f"the wheels at {place} cannot be had",
            f"{reason(error)}.",
            "Is the server running, and may this host reach it? Check runtime.wheelhouse, then "
            "start again.",
            tail,
        )
    missing, changed = [], []
    named = set(re.findall(r"([A-Za-z0-9][\w.-]*)==", "\n".join(tail)))
    suspects = {installer.normalised(name) for name in named}
    for name, (version, hashes) in locked.items():
        files = [link for link in links if _is(link, name, version)]
        if not files:
            missing.append(f"{name} {version}")
        elif "://" not in place or name in suspects:
            changed += _changed(files, hashes, sha256_of, sums)
    if changed:
        return _tampered(place, what, changed, tail)
    if missing:
        return HostError(
            what,
            f"{len(missing)} of {len(locked)} wheels are not at {place}: "
            f"{', '.join(missing[:5])}{' and more' if len(missing) > 5 else ''}.",
            "Run 'fleet runtime wheelhouse' for this inventory again and copy the directory as a "
            "whole.",
            [f"missing: {line}" for line in missing],
        )
    return None


def _listed(place: str) -> tuple[list[Link], Callable[[Link], str], dict[str, str]]:
    if "://" not in place:
        base = Path(place)
        return links_of_directory(base), lambda link: _digest_of(base / link.file), (
            wheel_pages.read_sums(base)
        )  # fmt: skip
    reader = Reader(os.environ.get("SSL_CERT_FILE"))
    with reader.open(place) as response:
        links = links_of_page(response.read().decode("utf-8", "replace"), place)
    said = {link.file: link.sha256 for link in links if link.sha256}

    def fetched(link: Link) -> str:
        digest = hashlib.sha256()
        with reader.open(link.url) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()

    return links, fetched, said


def _digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _is(link: Link, name: str, version: str) -> bool:
    parts = link.file.split("-")
    return installer.normalised(parts[0]) == name and parts[1].replace("_", "-") == version


def _changed(
    files: list[Link],
    hashes: list[str],
    sha256_of: Callable[[Link], str],
    sums: dict[str, str],
) -> list[tuple[str, str, str]]:
    """(file, expected, found) of the wheels of one package, when none is what the lock names."""
    found = {}
    for link in files:
        try:
            found[link.file] = sha256_of(link)
        except OSError as error:
            found[link.file] = f"nothing ({reason(error)})"
    if set(found.values()) & set(hashes):
        return []
    return [
        (
            file,
            sums[file] if sums.get(file) in hashes else " or ".join(hashes[:2]),
            digest,
        )
        for file, digest in found.items()
    ]


def _tampered(
    place: str, what: str, changed: list[tuple[str, str, str]], tail: list[str]
) -> HostError:
    file, expected, found = changed[0]
    return HostError(
        what,
        f"the wheel {file} at {place} is not the one that the lock names: expected SHA-256 "
        f"{expected}, found {found}.",
        "It was damaged on the way or changed by somebody; nothing of it was installed. Remove "
        "it, run 'fleet runtime wheelhouse' again (it downloads only what is missing) and copy it "
        "here again. If the hash differs again, find out who writes to that directory.",
        [f"{file}: expected {expected}, found {found}" for file, expected, found in changed] + tail,
    )
