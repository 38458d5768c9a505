"""The wheels that a lock names, from the comments that `fleet runtime lock` writes into it.

    aiohttp==3.14.5 \\
        --hash=sha256:0d1e...
        # wheel aiohttp-3.14.5-cp312-cp312-manylinux_2_28_x86_64.whl 1919630 sha256:0d1e...

A requirements file itself has hashes, and no names or sizes of files. As comments they change no
environment's identity (wanted.requirements).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

_WHEEL = re.compile(r"^\s*# wheel (\S+\.whl) (\d+|-) sha256:([0-9a-f]{64})$", re.MULTILINE)
_ENTRY = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
# Unpacked, with byte code: vLLM 0.32.0 for CPUs is 2.55 GB of 0.61 GB of wheels, measured; most of
# CUDA's libraries unpack to twice their size, so that this is plenty for them.
UNPACKED_FACTOR = 4.5
# The environment itself, with pip in it.
BARE_BYTES = 64 << 20


@dataclass(frozen=True, order=True)
class LockedWheel:
    """A wheel as a lock names it; size_bytes is None where the index did not say it."""

    file: str
    size_bytes: int | None
    sha256: str

    def as_spec(self) -> dict[str, str | int | None]:
        return {"file": self.file, "size_bytes": self.size_bytes, "sha256": self.sha256}

    def as_comment(self) -> str:
        size = "-" if self.size_bytes is None else self.size_bytes
        return f"    # wheel {self.file} {size} sha256:{self.sha256}"

    @property
    def project(self) -> str:
        """Its distribution's name, normalised as PEP 503 says."""
        return normalised(self.file.split("-")[0])


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def wheels_of_lock(text: str) -> tuple[LockedWheel, ...]:
    """Every wheel that a lock names, sorted; none of a lock that has no such comments."""
    return tuple(
        sorted(
            LockedWheel(file, None if size == "-" else int(size), sha256)
            for file, size, sha256 in _WHEEL.findall(text)
        )
    )


@cache
def entries_without_wheel(text: str) -> tuple[str, ...]:
    """Names of the lock's entries whose wheel it does not name: only a lock without any is usable
    where wheels are fetched by name."""
    named = {wheel.project for wheel in wheels_of_lock(text)}
    return tuple(name for name, _ in _ENTRY.findall(text) if normalised(name) not in named)


@cache
def pinned_versions(text: str) -> dict[str, str]:
    """{normalised name: version} of a lock's entries."""
    return {normalised(name): version for name, version in _ENTRY.findall(text)}


@cache
def sizes_of_projects(text: str) -> dict[str, int]:
    """{normalised name: bytes of its wheel}; empty of a lock that does not say all of them. Of
    several files of a project the largest: an installation takes one."""
    sizes: dict[str, int] = {}
    wheels = wheels_of_lock(text)
    if not wheels or entries_without_wheel(text):
        return {}
    for wheel in wheels:
        if wheel.size_bytes is None:
            return {}
        sizes[wheel.project] = max(sizes.get(wheel.project, 0), wheel.size_bytes)
    return sizes


def download_bytes(text: str) -> int | None:
    """Bytes of all wheels of a lock; None when it does not say all of them."""
    sizes = sizes_of_projects(text)
    return sum(sizes.values()) if sizes else None


def room_bytes(text: str, otherwise_bytes: int) -> int:
    """Bytes to have free for an environment of a lock; `otherwise_bytes` where it has no sizes."""
    size = download_bytes(text)
    return otherwise_bytes if size is None else BARE_BYTES + int(size * UNPACKED_FACTOR)
