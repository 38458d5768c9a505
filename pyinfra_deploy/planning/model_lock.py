"""A model's lock: which files it is made of, each with its size and SHA-256.

    locks/models/OWNER--NAME/REVISION.json     the lock, one file a line, so that diffs read well
    locks/models/OWNER--NAME/REVISION/         config, index and tokenizer, as locked

Written by `fleet model lock`. Its digest is the one that a host records of a model that it has
verified (files/fleet_host/listing.py, model_digest), so a release's ID is known before the pull.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from pyinfra_deploy.planning.model_files import content_digest, name_problem

SCHEMA = 1
HUBS = ("modelscope", "huggingface", "directory", "http")
ACCEPTABLE = ("code", "pickle")
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
# What says what a model is, and how its text becomes tokens. An index of 94 layers with 128 experts
# is some 10 MB, tokenizers are up to 35 MB.
DOCUMENTS = (
    *(CONFIG, INDEX, "generation_config.json", "preprocessor_config.json"),
    *("tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template*", "*.tiktoken", "spiece.model", "sentencepiece*.model", "tekken.json"),
)
LARGEST_DOCUMENT_BYTES = 64 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT_SHOWN = 12


class UnusableLock(ValueError):
    """The text is no lock that could be worked with; the message says why, in one sentence."""


@dataclass(frozen=True, order=True)
class LockedFile:
    """One file of a model: its path relative to the model, with "/"; SHA-256 in hex."""

    path: str
    size_bytes: int
    sha256: str

    def as_spec(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size_bytes, "sha256": self.sha256}


@dataclass(frozen=True)
class ModelLock:
    """commit: None where the hub has none. license: as its hub or README names it (SPDX where they
    do), None where neither does. accepts: what was accepted when it was locked. left_out: patterns
    of files that the hub has and that are not part of it."""

    model: str
    hub: str
    endpoint: str
    revision: str
    commit: str | None
    license: str | None
    license_from: str | None
    files: tuple[LockedFile, ...]
    accepts: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Of the content alone: who was asked for it does not count."""
        return content_digest((file.path, file.size_bytes, file.sha256) for file in self.files)

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def directory(self) -> str:
        """The model's directory on hosts, below OWNER--NAME: another content is another one, so
        that a branch that moves never changes a model under a running engine's feet."""
        name = self.revision
        if re.fullmatch(r"[0-9a-f]{40}", name):
            name = name[:_COMMIT_SHOWN]
        return f"{name}-{self.digest[:_COMMIT_SHOWN]}"

    def file(self, path: str) -> LockedFile | None:
        return self._by_path.get(path)

    @cached_property
    def _by_path(self) -> dict[str, LockedFile]:
        return {file.path: file for file in self.files}

    @property
    def documents(self) -> tuple[LockedFile, ...]:
        """The files that are kept beside the lock."""
        return tuple(file for file in self.files if is_document(file.path, file.size_bytes))


def is_document(path: str, size_bytes: int) -> bool:
    return size_bytes <= LARGEST_DOCUMENT_BYTES and any(
        fnmatch.fnmatchcase(path, pattern) for pattern in DOCUMENTS
    )


def lock_path(model: str, revision: str) -> str:
    """Where a lock lies that settings name no other place for, relative to the repository."""
    return f"locks/models/{model.replace('/', '--')}/{revision}.json"


def lock_text(lock: ModelLock) -> str:
    """The lock file: the same lock gives the same bytes. No date: that is git's business."""
    head = {
        "schema": SCHEMA,
        "model": lock.model,
        "hub": lock.hub,
        "endpoint": lock.endpoint,
        "revision": lock.revision,
        "commit": lock.commit,
        "license": lock.license,
        "license_from": lock.license_from,
        "accepts": sorted(lock.accepts),
        "left_out": sorted(lock.left_out),
        "digest": lock.digest,
        "total_bytes": lock.total_bytes,
    }
    lines = [f"  {json.dumps(key)}: {_json(value)}," for key, value in head.items()]
    files = ",\n".join(f"    {_json(file.as_spec())}" for file in sorted(lock.files))
    return "\n".join(["{", *lines, '  "files": [', files, "  ]", "}", ""])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@lru_cache(maxsize=16)
def read_lock(text: str) -> ModelLock:
    """The lock of a file's text. Raises UnusableLock."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableLock(f"it is not JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get("files"), list):
        raise UnusableLock("it has no list of files")
    if document.get("schema") != SCHEMA:
        raise UnusableLock(
            f"it has schema {document.get('schema')!r}, and this version knows {SCHEMA}"
        )
    lock = ModelLock(
        model=_text(document, "model"),
        hub=_text(document, "hub"),
        endpoint=_text(document, "endpoint"),
        revision=_text(document, "revision"),
        commit=_text_or_none(document, "commit"),
        license=_text_or_none(document, "license"),
        license_from=_text_or_none(document, "license_from"),
        accepts=_texts(document, "accepts"),
        left_out=_texts(document, "left_out"),
        files=tuple(sorted(_file(entry) for entry in document["files"])),
    )
    if lock.hub not in HUBS:
        raise UnusableLock(f"its hub is {lock.hub!r}, and must be one of {', '.join(HUBS)}")
    twice = {one.path for one, two in zip(lock.files, lock.files[1:], strict=False)
             if one.path == two.path}  # fmt: skip
    if twice:
        raise UnusableLock(f"it names {min(twice)} twice")
    if document.get("digest") != lock.digest:
        raise UnusableLock(
            "its digest is not that of its files: it was edited by hand, or merged half"
        )
    return lock


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise UnusableLock(f"its {key} is {value!r}, and must be a text")
    return value


def _text_or_none(document: dict[str, Any], key: str) -> str | None:
    return None if document.get(key) is None else _text(document, key)


def _texts(document: dict[str, Any], key: str) -> tuple[str, ...]:
    value = document.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UnusableLock(f"its {key} is {value!r}, and must be a list of texts")
    return tuple(sorted(value))


def _file(entry: object) -> LockedFile:
    if not isinstance(entry, dict):
        raise UnusableLock(f"a file of it is {entry!r}, and must be a mapping")
    path, size, sha256 = entry.get("path"), entry.get("size"), entry.get("sha256")
    problem = name_problem(path)
    if problem or not isinstance(path, str):
        raise UnusableLock(f"its file {path!r} {problem}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise UnusableLock(f"the size of {path} is {size!r}")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise UnusableLock(f"the sha256 of {path} is {sha256!r}")
    return LockedFile(path, size, sha256)


def document_problem(file: LockedFile, content: bytes) -> str | None:
    """Why a file beside the lock is not the one that is locked; None when it is."""
    if hashlib.sha256(content).hexdigest() == file.sha256:
        return None
    return f"{file.path} beside the lock is not the file that the lock names"
