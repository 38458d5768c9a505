"""Whether a model may be served: its lock, its licence, what beside safetensors it brings."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.model_files import code, pickles
from pyinfra_deploy.planning.model_lock import ModelLock, UnusableLock, read_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.settings.schema import Model, Settings

LOCK_AGAIN = "fleet model lock INVENTORY writes it anew; git has the one before"


@dataclass(frozen=True)
class LockedModel:
    """The lock that settings name: either it, or why it cannot be used. Neither: none is named.
    unsigned: the problem is its signature's. fix: of the problem."""

    lock: ModelLock | None = None
    problem: str = ""
    unsigned: bool = False
    fix: str = LOCK_AGAIN


NOT_LOCKED = LockedModel()


def judge_lock(model: Model, text: str) -> LockedModel:
    """A lock file's text, for the model that settings ask for."""
    try:
        lock = read_lock(text)
    except UnusableLock as error:
        return LockedModel(problem=f"{model.lock}: {error}")
    for key, asked, locked in (
        ("id", model.id, lock.model),
        ("revision", model.revision, lock.revision),
    ):
        if asked != locked:
            return LockedModel(
                problem=f"{model.lock} is of {key} {locked}, and model.{key} is {asked}"
            )
    return LockedModel(lock)


def lock_findings(host: str, settings: Settings, locked: LockedModel) -> Iterator[Finding]:
    """A lock that settings name and that cannot be used."""
    if settings.model is None or not locked.problem:
        return
    if locked.unsigned:
        yield Finding(
            "model.lock-not-signed",
            "refuse",
            host,
            "model.lock",
            "the model's lock is not signed as model.signed_by asks, so nothing is pulled by it",
            locked.fix,
            evidence=locked.problem,
            source="docs/models.md",
        )
        return
    yield Finding(
        "model.lock-unusable",
        "refuse",
        host,
        "model.lock",
        "the model's lock cannot be used, so a model could not be compared with anything",
        locked.fix,
        evidence=locked.problem,
        source="docs/models.md",
    )


def supply_findings(host: str, settings: Settings, locked: LockedModel) -> Iterator[Finding]:
    """Everything about where a model comes from and what it brings."""
    if settings.model is None:
        return
    yield from lock_findings(host, settings, locked)
    if locked.problem:
        return
    yield from _license(host, settings, settings.model, locked.lock)
    yield from _unaccepted(host, settings.model, locked.lock)
    yield from _remote_code(host, settings, settings.model, locked.lock)


def _license(
    host: str, settings: Settings, model: Model, lock: ModelLock | None
) -> Iterator[Finding]:
    allowed = settings.allowed_licenses
    if not allowed:
        return
    if lock is None or lock.license is None:
        yield Finding(
            "model.license-unknown",
            "refuse",
            host,
            model.id,
            "allowed_licenses limits what may be served, and this model's licence is not known"
            + ("" if lock else ", as it has no lock"),
            "make a lock (fleet model lock INVENTORY; with --license NAME where neither README.md "
            "nor the hub names it), and set model.lock",
            evidence=f"allowed: {', '.join(allowed)}",
            source="docs/models.md",
        )
        return
    named = lock.license.casefold()
    if not any(fnmatch.fnmatchcase(named, pattern.casefold()) for pattern in allowed):
        yield Finding(
            "model.license-not-allowed",
            "refuse",
            host,
            model.id,
            f"its licence, {lock.license}, is not among allowed_licenses",
            "serve another model, or have the licence read and add it to allowed_licenses",
            evidence=f"{lock.license} from {lock.license_from}; allowed: {', '.join(allowed)}",
            source=str(model.lock),
        )


def _unaccepted(host: str, model: Model, lock: ModelLock | None) -> Iterator[Finding]:
    """Files that a lock has and that settings do not accept: it may have been made without them."""
    paths = [file.path for file in lock.files] if lock else []
    found = pickles(paths)
    if found and "pickle" not in model.accept:
        yield Finding(
            "model.pickle-weights",
            "refuse",
            host,
            model.id,
            f"the locked model has {len(found)} pickled files, and loading one runs whatever code "
            "it holds",
            "lock it without them (fleet model lock --without), or write model: {accept: [pickle]}",
            evidence=", ".join(found[:3]),
            source=str(model.lock),
        )
    found = code(paths)
    if found and "code" not in model.accept:
        yield Finding(
            "model.repository-code",
            "refuse",
            host,
            model.id,
            f"the locked model brings {len(found)} files of code, which the engine would run with "
            "trust-remote-code",
            "lock it without them (fleet model lock --without '*.py'), or read them and write "
            "model: {accept: [code]}",
            evidence=", ".join(found[:3]),
            source=str(model.lock),
        )


def _remote_code(
    host: str, settings: Settings, model: Model, lock: ModelLock | None
) -> Iterator[Finding]:
    if settings.engine.args.get("trust-remote-code") is not True:
        return
    if "code" not in model.accept:
        yield Finding(
            "model.repository-code",
            "refuse",
            host,
            "engine.args.trust-remote-code",
            "the engine would run code that came with the model, and settings do not accept any",
            "leave trust-remote-code out where vLLM has the architecture itself; else read the "
            "code, lock the model, and write model: {accept: [code]}",
            evidence="engine.args.trust-remote-code: true",
            source="docs/models.md",
        )
    elif lock is None:
        yield Finding(
            "model.code-not-locked",
            "warn",
            host,
            model.id,
            "the engine runs code that came with the model, and nothing pins which: whoever can "
            "change the repository can run code on this host at the next pull",
            "fleet model lock INVENTORY, then set model.lock",
            evidence="engine.args.trust-remote-code: true, model.lock: null",
            source="docs/models.md",
        )
