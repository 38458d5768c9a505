"""What may be a file of a model: names, hashes, shards, pickles, code.

The names' rules and the digest are those of files/fleet_host/listing.py, which runs on hosts and
shares no code with this package; tests/unit/planning/test_model_lock.py holds the two together.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# Loading one of these runs whatever code it holds (pickle's documentation, "Warning").
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
SAFETENSORS = ".safetensors"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
# Linux takes 255 bytes a part (NAME_MAX), and a file on its way has ".incomplete" behind its name;
# 4096 in all (PATH_MAX), with the model's directory before it.
LONGEST_PART_BYTES, LONGEST_PATH_BYTES = 240, 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Listed:
    """A file as a hub lists it; None for what the hub does not say."""

    path: object
    size_bytes: object
    sha256: object


def content_digest(files: Iterable[tuple[str, int, str]]) -> str:
    """SHA-256 over all paths, sizes and hashes: the identity of a model's content."""
    lines = [[path, size, sha256] for path, size, sha256 in sorted(files)]
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def name_problem(path: object) -> str | None:
    """Why this name may not be a file of a model; None when it may."""
    if not isinstance(path, str) or not path:
        return "has no name"
    if _CONTROL.search(path):
        return "has a control character or a backslash in its name"
    try:
        lengths = [len(part.encode()) for part in path.split("/")]
    except UnicodeEncodeError:
        return "is no text that a file system could hold"
    if max(lengths) > LONGEST_PART_BYTES or sum(lengths) + len(lengths) > LONGEST_PATH_BYTES:
        return f"is longer than {LONGEST_PART_BYTES} bytes in a part or {LONGEST_PATH_BYTES} in all"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "leaves the model's directory, or is not written plainly"
    return None


def listing_problems(listed: Iterable[Listed]) -> list[str]:
    """Why a listing cannot be locked: a line for each entry that could not be verified."""
    problems: list[str] = []
    seen: set[str] = set()
    for entry in listed:
        problem = name_problem(entry.path)
        if problem or not isinstance(entry.path, str):
            problems.append(f"{entry.path!r} {problem}")
            continue
        size = entry.size_bytes
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            problems.append(f"{entry.path} has no size")
        elif not isinstance(entry.sha256, str) or not _SHA256.fullmatch(entry.sha256):
            problems.append(f"{entry.path} has no SHA-256")
        if entry.path in seen:
            problems.append(f"{entry.path} is listed twice")
        seen.add(entry.path)
    for path in sorted(seen):
        parts = path.split("/")
        parents = ("/".join(parts[:end]) for end in range(1, len(parts)))
        problems += [f"{one} is a file and a directory at once" for one in parents if one in seen]
    return problems


def pickles(paths: Iterable[str]) -> list[str]:
    """Weights that are Python pickles."""
    return sorted(path for path in paths if path.lower().endswith(PICKLES))


def code(paths: Iterable[str]) -> list[str]:
    """Files that vLLM would run with trust-remote-code."""
    return sorted(path for path in paths if path.lower().endswith((".py", ".so", ".pyc")))


def shards_of(index: bytes) -> set[str]:
    """The files that an index's weight_map names. Raises ValueError, its text a sentence."""
    try:
        shards = set(json.loads(index)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it has no weight_map ({type(error).__name__}: {error})") from error
    wrong = sorted(str(name) for name in shards if name_problem(name))
    if wrong or not shards:
        raise ValueError(
            f"its weight_map names {wrong[0]!r}" if wrong else "its weight_map is empty"
        )
    return shards


def weights_problem(paths: Collection[str], accepts: Collection[str]) -> str | None:
    """Why these files are no model that vLLM could load; None when they are one."""
    if CONFIG not in paths:
        return f"it has no {CONFIG}"
    if INDEX in paths or SINGLE in paths:
        return None
    if any(path.endswith(SAFETENSORS) and "/" not in path for path in paths):
        return None
    if "pickle" in accepts and pickles(paths):
        return None
    return f"it has neither {INDEX} nor other weights in safetensors format"
