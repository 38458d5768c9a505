"""A model's lock as OpenSSF model-signing sees a model: a manifest of files and their SHA-256.

model-signing hashes a directory and signs what it found. Here the hashes come from the lock, so no
weight is read, and the same signature is that of the downloaded directory:

    model_signing verify key DIRECTORY --signature LOCK.json.sig --public_key models.pub

The seam is its Config.set_hashing_config(); it is pinned to one version (pyproject.toml, signing).
What else the lock says (model, revision, commit, licence) is signed along with the description of
how the files were hashed, in which model-signing ignores what it does not know.
"""

from __future__ import annotations

from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from pyinfra_deploy.planning.model_lock import LockedFile, ModelLock

HEAD = "fleet_lock"
# What model-signing leaves out of every model unless it is told otherwise (hashing.Config.hash), so
# that a clone and a download are the same model. An engine reads none of them.
NOT_SIGNED = (".git", ".gitattributes", ".github", ".gitignore")
INSTALL = "python -m pip install --require-hashes -r requirements-signing.txt"


class NoLibrary(Exception):
    """model-signing cannot be imported; the message says why."""


@cache
def library(name: str) -> ModuleType:
    """A module of model_signing, imported when first needed: it takes 0.7 s. Raises NoLibrary."""
    import importlib

    try:
        return importlib.import_module(f"model_signing.{name}")
    except ImportError as error:
        raise NoLibrary(f"{type(error).__name__}: {error}") from error


def signed_files(lock: ModelLock) -> tuple[LockedFile, ...]:
    """The files that a signature covers."""
    return tuple(file for file in lock.files if PurePosixPath(file.path).parts[0] not in NOT_SIGNED)


def head(lock: ModelLock) -> dict[str, Any]:
    """All that the lock says beside its files."""
    return {
        "model": lock.model,
        "revision": lock.revision,
        "hub": lock.hub,
        "endpoint": lock.endpoint,
        "commit": lock.commit,
        "license": lock.license,
        "license_from": lock.license_from,
        "accepts": list(lock.accepts),
        "left_out": list(lock.left_out),
        "digest": lock.digest,
    }


def hashing_of(lock: ModelLock) -> Any:
    """In place of model_signing.hashing.Config: its hash() reads no file. Raises NoLibrary."""
    hashing, manifest = library("hashing"), library("manifest")
    digest_of = library("_hashing.hashing").Digest
    parameters = {"method": "files", "hash_type": "sha256", "allow_symlinks": False}
    serialization = manifest.SerializationType.from_args(parameters)

    class WithHead(type(serialization)):  # type: ignore[misc]
        @property
        def serialization_parameters(self) -> dict[str, Any]:
            return {**parameters, HEAD: head(lock)}

    class FromLock(hashing.Config):  # type: ignore[misc, name-defined]
        def hash(self, model_path: Any, *, files_to_hash: Any = None) -> Any:
            del model_path, files_to_hash
            return manifest.Manifest(
                f"{lock.model}@{lock.revision}",
                [
                    serialization.new_item(
                        file.path, digest_of("sha256", bytes.fromhex(file.sha256))
                    )
                    for file in signed_files(lock)
                ],
                WithHead("sha256"),
            )

    return FromLock()
