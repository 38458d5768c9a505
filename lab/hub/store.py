"""Models on disk, as the hub serves them.

    models/OWNER/NAME/branches.json            {"master": COMMIT}
    models/OWNER/NAME/revisions/COMMIT/...     the files
    models/OWNER/NAME/revisions/COMMIT.json    their SHA-256, and the size and time of each then

COMMIT is 40 hex digits made from the paths and contents, so the same files are the same revision.
Nothing appears under `revisions` before it is whole and on the disk.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lab.durable import sync_directory, sync_tree, write_atomic
from lab.errors import LabError

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_BRANCH = "master"
_MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_BUFFER_BYTES = 1024 * 1024


class UnknownModelError(LookupError):
    """No such model in the store."""


class UnknownRevisionError(LookupError):
    """The model has neither a branch nor a revision of that name."""


@dataclass(frozen=True)
class StoredFile:
    """One file of a revision. `modified_ns` tells whether `sha256` is still of this content."""

    path: str
    size_bytes: int
    sha256: str
    modified_ns: int


@dataclass(frozen=True)
class Revision:
    """What a branch or commit stands for."""

    commit: str
    directory: Path
    files: tuple[StoredFile, ...]


def model_directory(models: Path, model_id: str) -> Path:
    """models/OWNER/NAME. UnknownModelError unless `model_id` is owner/name of plain characters."""
    if not _MODEL_ID.fullmatch(model_id):
        raise UnknownModelError(model_id)
    return models / model_id


def model_ids(models: Path) -> list[str]:
    """Every model that has a branch, sorted."""
    found = models.glob("*/*/branches.json")
    return sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in found)


def branches(models: Path, model_id: str) -> dict[str, str]:
    """Branch -> commit."""
    path = model_directory(models, model_id) / "branches.json"
    try:
        content: dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        raise UnknownModelError(model_id) from None
    return content


def commit_of(files: tuple[StoredFile, ...]) -> str:
    """40 hex digits that stand for these paths and contents."""
    text = "".join(f"{file.sha256}  {file.path}\n" for file in files)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(_BUFFER_BYTES):
            digest.update(block)
    return digest.hexdigest()


def hash_files(directory: Path, known: tuple[StoredFile, ...] = ()) -> tuple[StoredFile, ...]:
    """Every file below `directory`, sorted by path; `known` saves reading what has not changed."""
    by_path = {file.path: file for file in known}
    found = []
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        name = path.relative_to(directory).as_posix()
        status = path.stat()
        old = by_path.get(name)
        if old and (old.size_bytes, old.modified_ns) == (status.st_size, status.st_mtime_ns):
            found.append(old)
        else:
            digest = sha256_of(path)
            found.append(StoredFile(name, status.st_size, digest, status.st_mtime_ns))
    return tuple(found)


def publish(models: Path, made: Path, model_id: str, branch: str = DEFAULT_BRANCH) -> str:
    """Move the directory `made` (same file system) into the store; `branch` then names it.

    Returns the commit. Killed half way, the store is as it was before.
    """
    if not _MODEL_ID.fullmatch(model_id):
        raise LabError(
            f"{model_id!r} is not a model's name",
            "the hub serves models as owner/name, in letters, digits, dots, dashes and underscores",
            "name it like lab/my-model",
        )
    for path in [made, *made.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)  # vLLM reads as another user
    files = hash_files(made)
    if not files:
        raise LabError(f"{made} is empty", "a model has at least one file", "make it again")
    commit = commit_of(files)
    directory = models / model_id / "revisions" / commit
    _write_hashes(directory, files)
    if not directory.exists():
        sync_tree(made)
        made.rename(directory)
        sync_directory(directory.parent)
    set_branch(models, model_id, branch, commit)
    return commit


def set_branch(models: Path, model_id: str, branch: str, commit: str) -> None:
    """Let `branch` name `commit`, which the store must hold."""
    place = model_directory(models, model_id)
    if not (place / "revisions" / commit).is_dir():
        raise UnknownRevisionError(f"{model_id} at {commit}")
    path = place / "branches.json"
    content = json.loads(path.read_text()) if path.exists() else {}
    content[branch] = commit
    write_atomic(path, json.dumps(content, indent=1, sort_keys=True).encode())


def revision(models: Path, model_id: str, name: str) -> Revision:
    """What `name`, a branch or a commit, stands for now.

    Files that changed on disk since they were hashed are read again.
    """
    commit = branches(models, model_id).get(name, name)
    directory = model_directory(models, model_id) / "revisions" / commit
    if not re.fullmatch(r"[0-9a-f]{40}", commit) or not directory.is_dir():
        raise UnknownRevisionError(f"{model_id} at {name}")
    known = _read_hashes(directory)
    files = hash_files(directory, known)
    if files != known:
        _write_hashes(directory, files)
    return Revision(commit, directory, files)


def _hashes_file(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.json")


def _read_hashes(directory: Path) -> tuple[StoredFile, ...]:
    try:
        return tuple(
            StoredFile(**entry) for entry in json.loads(_hashes_file(directory).read_text())
        )
    except (FileNotFoundError, ValueError, TypeError):
        return ()  # only a cache: absent or damaged, the files are read again


def _write_hashes(directory: Path, files: tuple[StoredFile, ...]) -> None:
    content = json.dumps([asdict(file) for file in files], indent=1)
    write_atomic(_hashes_file(directory), content.encode())
