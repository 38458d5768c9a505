"""Pure: a hub's listing of a model, and what must hold for it before a byte is downloaded."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from .errors import HostError

if TYPE_CHECKING:
    from collections.abc import Collection

# The hub cuts a listing here without saying so (modelscope_hub, REPO_FILES_TRUNCATION_LIMIT).
TRUNCATION_LIMIT = 3000
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
# As pyinfra_deploy/planning/model_files.py has them: a pickle runs whatever code it holds when it
# is loaded, and vLLM runs files of code with trust-remote-code.
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
CODE = (".py", ".so", ".pyc")
SHA256 = re.compile(r"[0-9a-f]{64}")
# Linux takes 255 bytes a part (NAME_MAX), and a file on its way has ".incomplete" behind its name;
# 4096 in all (PATH_MAX), with the model's directory before it.
LONGEST_PART_BYTES, LONGEST_PATH_BYTES = 240, 1024
CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")


@dataclass(frozen=True, order=True)
class FileEntry:
    """One file of a model: path relative to it (with "/"), size in bytes, SHA-256 in hex."""

    path: str
    size_bytes: int
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size_bytes, "sha256": self.sha256}


@dataclass(frozen=True)
class Listing:
    """All files of a model at a revision, sorted by path. commit: the hub's, None if not told."""

    entries: tuple[FileEntry, ...]
    commit: str | None

    @property
    def total_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)

    def entry(self, path: str) -> FileEntry | None:
        return next((entry for entry in self.entries if entry.path == path), None)


def model_digest(entries: tuple[FileEntry, ...]) -> str:
    """SHA-256 over all paths, sizes and hashes: the identity of a model's content."""
    lines = [[entry.path, entry.size_bytes, entry.sha256] for entry in sorted(entries)]
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def name_problem(path: object) -> str | None:
    """Why this name may not be a file of a model; None when it may."""
    if not isinstance(path, str) or not path:
        return "has no name"
    if CONTROL.search(path):
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


def parse_listing(data: Any, where: str, cut_at: int | None = TRUNCATION_LIMIT) -> Listing:
    """A Listing from the hub's "Data". HostError when it cannot be checked or trusted.
    cut_at: entries from which on a listing counts as cut.

    Fields that are not needed are ignored: hubs differ in them. Those that are needed are strict,
    because the client accepts a file without a hash unchecked and exits 0.
    """
    files = data.get("Files") if isinstance(data, dict) else None
    if not isinstance(files, list):
        raise HostError(
            f"the listing of {where} cannot be read",
            "the hub's answer has no list Data.Files.",
            "Check model.endpoint: is this a ModelScope hub?",
        )
    if cut_at is not None and len(files) >= cut_at:
        raise HostError(
            f"the listing of {where} is not complete",
            f"the hub cuts listings at {cut_at} entries without saying so, and this one "
            f"has {len(files)}: files may be missing.",
            "A model of that many files is not supported: mirror it with fewer, larger files.",
        )
    problems: list[str] = []
    entries: dict[str, FileEntry] = {}
    for raw in files:
        if not isinstance(raw, dict):
            problems.append(f"an entry is {raw!r}, not an object")
        elif raw.get("Type") != "tree":
            problem = _add_entry(raw, entries)
            if problem:
                problems.append(problem)
    for path in entries:
        for parent in PurePosixPath(path).parents:
            if str(parent) in entries:
                problems.append(f"{parent} is a file and a directory at once")
    if problems:
        raise HostError(
            f"the listing of {where} is not fit to be checked against",
            f"{len(problems)} of its entries cannot be verified; the first: {problems[0]}. A file "
            "that cannot be verified could be corrupt without anybody noticing.",
            "Ask whoever runs the hub to publish Size and Sha256 for every file (a mirror made "
            "by 'git lfs' has them), or use another endpoint or revision.",
            problems[:50],
        )
    committer = data.get("LatestCommitter")
    commit = committer.get("Id") if isinstance(committer, dict) else None
    return Listing(tuple(sorted(entries.values())), commit if isinstance(commit, str) else None)


def locked_listing(files: Any, commit: str | None) -> Listing:
    """A Listing from a lock's files: [{path, size, sha256}]. HostError as for a hub's."""
    rows = files if isinstance(files, list) and files else [None]
    named = [
        {"Path": row.get("path"), "Size": row.get("size"), "Sha256": row.get("sha256")}
        if isinstance(row, dict)
        else row
        for row in rows
    ]
    found = parse_listing({"Files": named}, "the model's lock", cut_at=None)
    return Listing(found.entries, commit)


def _add_entry(raw: dict[str, Any], entries: dict[str, FileEntry]) -> str | None:
    path = raw.get("Path") or raw.get("Name")
    problem = name_problem(path)
    if problem or not isinstance(path, str):
        return f"{path!r} {problem}"
    size, sha256 = raw.get("Size"), raw.get("Sha256")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        return f"{path} has no Size"
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256.lower()):
        return f"{path} has no Sha256"
    if path in entries:
        return f"{path} is listed twice"
    entries[path] = FileEntry(path, size, sha256.lower())
    return None


def shards_of(index: bytes, where: str) -> set[str]:
    """The files that an index's weight_map names. HostError when it is no such index."""
    try:
        weight_map = json.loads(index)["weight_map"]
        shards = set(weight_map.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HostError(
            f"{INDEX} of {where} cannot be read",
            f"it holds no weight_map ({type(error).__name__}: {error}).",
            "The model is broken on the hub: use another revision.",
        ) from error
    wrong = sorted(str(name) for name in shards if name_problem(name))
    if wrong or not shards:
        raise HostError(
            f"{INDEX} of {where} cannot be used",
            f"its weight_map names {wrong[0]!r}." if wrong else "its weight_map is empty.",
            "The model is broken on the hub: use another revision.",
        )
    return shards


def require_accepted(listing: Listing, accept: Collection[str], where: str) -> None:
    """Refuse a listing with files that run code, unless the settings accept them (model.accept)."""
    for word, endings, what in (
        ("pickle", PICKLES, "pickled weights, and loading one runs whatever code it holds"),
        ("code", CODE, "code, which the engine would run with trust-remote-code"),
    ):
        paths = [entry.path for entry in listing.entries]
        found = [path for path in paths if path.lower().endswith(endings)]
        if found and word not in accept:
            raise HostError(
                f"{where} brings what the settings do not accept",
                f"{len(found)} files are {what}; the first: {found[0]}.",
                "Lock it without them (fleet model lock INVENTORY --without "
                f"'*{'.' + found[0].rsplit('.', 1)[-1]}') and set model.lock, or write model: "
                f"{{accept: [{word}]}} after reading them.",
                found[:50],
            )


def require_weights(listing: Listing, where: str, accept: Collection[str] = ()) -> None:
    """Refuse a listing without config.json or without weights that vLLM would load: in safetensors
    format, or pickled ones that are accepted."""
    if listing.entry(CONFIG) is None:
        raise HostError(
            f"{where} is not a model that vLLM can load",
            f"its listing has no {CONFIG}.",
            "Check model.id and model.revision.",
            [entry.path for entry in listing.entries[:20]],
        )
    pickled = any(entry.path.lower().endswith(PICKLES) for entry in listing.entries)
    if "pickle" in accept and pickled:
        return
    if listing.entry(INDEX) is None and listing.entry(SINGLE) is None:
        raise HostError(
            f"{where} has no weights in safetensors format",
            f"its listing has neither {INDEX} nor {SINGLE}.",
            "Use a revision that has them; pickled weights only count with model.accept: [pickle].",
            [entry.path for entry in listing.entries[:20]],
        )


def require_shards(listing: Listing, shards: set[str], where: str) -> None:
    """Refuse a listing that lacks a shard: the client would exit 0 with the model incomplete."""
    missing = sorted(shards - {entry.path for entry in listing.entries})
    if missing:
        raise HostError(
            f"{where} is not complete on the hub",
            f"{INDEX} names {len(missing)} of {len(shards)} shards that the listing lacks, "
            f"{missing[0]} first.",
            "Pull again when the hub is complete, or use another revision or endpoint.",
            missing[:50],
        )
