"""From what a hub says of a model to a lock, or to the reason why there is none."""

from __future__ import annotations

import fnmatch
import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import yaml

from pyinfra_deploy.model.refused import Refused
from pyinfra_deploy.planning.model_files import (
    INDEX,
    SAFETENSORS,
    code,
    listing_problems,
    pickles,
    shards_of,
    weights_problem,
)
from pyinfra_deploy.planning.model_lock import LockedFile, ModelLock, is_document
from pyinfra_deploy.planning.model_lock_changes import size_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyinfra_deploy.model.source import Answered, Asked

README = "README.md"
PICKLED_INDEX = "pytorch_model.bin.index.json"
_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)
_NAMED = 50


@dataclass(frozen=True)
class Wish:
    """What to lock. license: as the operator states it, where the hub does not."""

    model: str
    revision: str
    accepts: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    license: str | None = None

    def leaves_out(self, path: str) -> bool:
        """Patterns as shells have them; one without a slash is for names in every directory."""
        name = path.rsplit("/", 1)[-1]
        return any(
            fnmatch.fnmatchcase(path, pattern)
            or ("/" not in pattern and fnmatch.fnmatchcase(name, pattern))
            for pattern in self.left_out
        )


@dataclass(frozen=True)
class Made:
    """documents: path -> content, of the files that lie beside the lock."""

    lock: ModelLock
    documents: dict[str, bytes]
    notes: tuple[str, ...]


def make(ask: Callable[[Asked], Answered], asked: Asked, wish: Wish) -> Made:
    """Raises Refused, for what could not be verified or was not accepted."""
    found = ask(asked)
    where = f"{wish.model} at {wish.revision} from {found.endpoint}"
    problems = listing_problems(found.files)
    if problems:
        raise Refused(
            f"{where} cannot be locked",
            f"{len(problems)} entries of its listing could not be verified: {problems[0]}. A file "
            "that cannot be verified could be corrupt without anybody noticing.",
            "take another hub, endpoint or revision; or lock a copy in a directory, which is "
            "hashed here.",
            problems[:_NAMED],
        )
    files = tuple(sorted(
        LockedFile(str(file.path), int(str(file.size_bytes)), str(file.sha256))
        for file in found.files
    ))  # fmt: skip
    paths = {file.path for file in files}
    _refuse_unaccepted(where, paths, wish)
    problem = weights_problem(paths, wish.accepts)
    if problem:
        raise Refused(
            f"{where} is no model that vLLM could load",
            f"{problem}.",
            "check the name and the revision; weights have to be in safetensors format, or "
            "accepted as pickles (--accept pickle, model.accept).",
            sorted(paths)[:20],
        )
    lock = ModelLock(
        model=wish.model,
        hub=found.hub,
        endpoint=found.endpoint,
        revision=wish.revision,
        commit=found.commit,
        license=None,
        license_from=None,
        files=files,
        accepts=_accepts_in_use(paths, wish),
        left_out=tuple(sorted(wish.left_out)),
    )
    documents = {
        file.path: verified(found, file, where)
        for file in files
        if is_document(file.path, file.size_bytes)
    }
    for name in (INDEX, PICKLED_INDEX):
        index = lock.file(name)
        if index is not None:
            content = documents.get(name) or verified(found, index, where)
            _require_shards(where, name, content, paths)
    lock = _with_license(lock, found, wish, where)
    index_text = documents.get(INDEX)
    unnamed = _unnamed(lock, shards_of(index_text)) if index_text is not None else ()
    return Made(lock, documents, found.notes + unnamed)


def _unnamed(lock: ModelLock, shards: set[str]) -> tuple[str, ...]:
    """A note of weights that the index does not name: vLLM loads those that it names, and hosts
    would pull the others for nothing (consolidated.safetensors is the whole model once more)."""
    more = [
        file for file in lock.files if file.path.endswith(SAFETENSORS) and file.path not in shards
    ]
    if not more:
        return ()
    without = " ".join(f"--without '{file.path}'" for file in more[:3])
    return (
        f"WARNING: {len(more)} weight files, {size_words(sum(file.size_bytes for file in more))}, "
        f"are not named in {INDEX}: {', '.join(file.path for file in more[:3])}. Hosts pull them "
        f"all the same; if the model does not need them, leave them out: {without}",
    )


def _refuse_unaccepted(where: str, paths: set[str], wish: Wish) -> None:
    for word, names, why in (
        ("pickle", pickles(paths), "loading a pickle runs whatever code it holds"),
        ("code", code(paths), "with trust-remote-code the engine would run it"),
    ):
        if names and word not in wish.accepts:
            patterns = sorted({f"*.{name.rsplit('.', 1)[-1]}" for name in names})
            without = " ".join(f"--without '{pattern}'" for pattern in patterns)
            raise Refused(
                f"{where} brings {'pickled weights' if word == 'pickle' else 'code of its own'}",
                f"{len(names)} files, {names[0]} first: {why}.",
                f"leave them out where the model works without them ({without}), or accept them: "
                f"model.accept: [{word}] in settings, --accept {word} without an inventory. "
                "Accepted files are locked by their digest like all others.",
                names[:_NAMED],
            )


def _accepts_in_use(paths: set[str], wish: Wish) -> tuple[str, ...]:
    """Only what there is: a lock should not say that a model without code has some."""
    used = {"pickle": bool(pickles(paths)), "code": bool(code(paths))}
    return tuple(sorted(word for word in wish.accepts if used[word]))


def verified(found: Answered, file: LockedFile, where: str) -> bytes:
    """A small file's content, which has to be the listed one. Raises Refused."""
    content = found.read(file.path)
    sha256 = hashlib.sha256(content).hexdigest()
    if len(content) != file.size_bytes or sha256 != file.sha256:
        raise Refused(
            f"{file.path} of {where} is not what the listing says",
            f"listed {file.size_bytes} bytes, SHA-256 {file.sha256}; got {len(content)} bytes, "
            f"{sha256}.",
            "try again; if it stays so, the hub or a proxy on the way is broken.",
        )
    return content


def _require_shards(where: str, name: str, index: bytes, paths: set[str]) -> None:
    try:
        shards = shards_of(index)
    except ValueError as error:
        raise Refused(
            f"{name} of {where} cannot be used",
            f"{error}.",
            "the model is broken there: take another revision or hub.",
        ) from error
    missing = sorted(shards - paths)
    if missing:
        raise Refused(
            f"{where} is not complete",
            f"{name} names {len(missing)} of {len(shards)} shards that the listing lacks, "
            f"{missing[0]} first.",
            "wait until the upload is finished, or take another revision or hub; a pattern of "
            "--without may also have left them out.",
            missing[:_NAMED],
        )


def _with_license(lock: ModelLock, found: Answered, wish: Wish, where: str) -> ModelLock:
    """The operator's word before the README's, which is locked, before that of the hub's page."""
    if wish.license:
        return replace(lock, license=wish.license, license_from="the operator")
    readme = lock.file(README)
    if readme is not None:
        named = license_of_readme(verified(found, readme, where).decode(errors="replace"))
        if named:
            return replace(lock, license=named, license_from=README)
    return replace(lock, license=found.license, license_from=found.license_from)


def license_of_readme(text: str) -> str | None:
    """`license` of a model card's YAML head; license_name where that is `other`."""
    match = _FRONT_MATTER.match(text)
    if match is None:
        return None
    try:
        head = yaml.safe_load(match[1])
    except yaml.YAMLError:
        return None
    if not isinstance(head, dict):
        return None
    named, other = head.get("license"), head.get("license_name")
    if named == "other" and isinstance(other, str) and other:
        return other
    return named if isinstance(named, str) and named else None
