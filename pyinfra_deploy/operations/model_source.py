"""Where planning takes a model's documents from: its lock, the hub or a directory, each read once a
run."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.facts import hub_model
from pyinfra_deploy.operations.lock_signature import signature_path, signature_problem
from pyinfra_deploy.planning import wanted
from pyinfra_deploy.planning.foresight import KnownModel
from pyinfra_deploy.planning.model_lock import CONFIG, INDEX, document_problem
from pyinfra_deploy.planning.model_supply import LockedModel, judge_lock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyinfra_deploy.facts.model_documents import ModelDocuments
    from pyinfra_deploy.planning.model_lock import ModelLock
    from pyinfra_deploy.settings.schema import Model, Settings


@cache
def known_model(model: Model, root: Path, directory: Path | None = None) -> KnownModel:
    """What is known of a model before it is pulled: from `directory` where one is given
    (--model-config), from its lock where settings name one, else from the hub, whose answer is kept
    below the repository's root for the next run."""
    locked = locked_model(model, root)
    if directory is not None:
        return replace(_known(hub_model.read_directory(directory)), locked=locked)
    if locked.lock is not None:
        known = _of_lock(model, locked.lock, root)
        return known if known.locked.problem else replace(known, locked=locked)
    if locked.problem:
        return KnownModel(locked=locked)
    return _known(hub_model.fetch(model, root / ".fleet" / "models"))


@cache
def locked_model(model: Model, root: Path) -> LockedModel:
    """The lock that settings name, or why it cannot be used."""
    if model.lock is None:
        return LockedModel()
    try:
        text = (root / model.lock).read_text(encoding="utf-8")
    except OSError as error:
        return LockedModel(problem=f"{model.lock}: {error.strerror}")
    except UnicodeDecodeError as error:
        return LockedModel(problem=f"{model.lock}: it is not UTF-8 text ({error.reason})")
    locked = judge_lock(model, text)
    if locked.lock is None:
        return locked
    if not model.signed_by:
        return replace(locked, unchecked=signature_path(root / model.lock).exists())
    keys = [root / place for place in model.signed_by]
    wrong = signature_problem(root / model.lock, locked.lock, keys)
    if wrong is None:
        return locked
    return LockedModel(problem=f"{model.lock}: {wrong.why}", unsigned=True, fix=wrong.fix)


def _of_lock(model: Model, lock: ModelLock, root: Path) -> KnownModel:
    """config and index from beside the lock, the listing from it."""
    assert model.lock is not None
    beside = root / model.lock.removesuffix(".json")
    found: dict[str, Any] = {}
    for name in (CONFIG, INDEX):
        file = lock.file(name)
        if file is None or file not in lock.documents:
            continue
        try:
            content = (beside / name).read_bytes()
            problem = document_problem(file, content)
        except OSError as error:
            content, problem = b"", f"{beside / name}: {error.strerror}"
        if problem:
            return KnownModel(locked=LockedModel(problem=problem))
        text = content.decode(errors="replace")
        try:
            found[name] = json.loads(text)
        except (ValueError, RecursionError):
            found[name] = text  # the plan says what is wrong with it
    sizes = {file.path: file.size_bytes for file in lock.files}
    return KnownModel(found.get(CONFIG), found.get(INDEX), sizes, "", model.lock, LockedModel(lock))


def _known(documents: ModelDocuments) -> KnownModel:
    return KnownModel(**vars(documents))


def model_is_on_host(
    settings: Settings, snapshot: Mapping[str, Any] | None, lock: ModelLock | None = None
) -> bool:
    """Whether the model is published on the host with all of its bytes, and as locked: one with a
    file too much, or that somebody touched, needs no room for another copy."""
    if snapshot is None or settings.model is None:
        return False
    revisions = (snapshot.get("models") or {}).get(wanted.model_slug(settings)) or {}
    found = revisions.get(wanted.model_revision(settings, lock))
    if not isinstance(found, dict):
        return False
    record = found.get("record") or {}
    whole = (record.get("total_bytes"), found.get("bytes"))
    if not found.get("intact") and (None in whole or whole[0] != whole[1]):
        return False
    return lock is None or record.get("model_digest") == lock.digest
