"""Whether a model may be served: its lock, its licence, what beside safetensors it brings."""

from __future__ import annotations

import fnmatch
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.model_files import code, pickles
from pyinfra_deploy.planning.model_lock import ModelLock, UnusableLock, lock_path, read_lock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyinfra_deploy.settings.schema import Model, Settings

# `--load-format`: torch's own files, and a cache of them as numpy arrays. vLLM (0.28 to 0.33,
# model_executor/model_loader/default_loader.py) reads *.bin and *.pt for both.
PICKLE_FORMATS = ("pt", "npcache")
LOCK_AGAIN = "fleet model lock INVENTORY writes it anew; git has the one before"


@dataclass(frozen=True)
class LockedModel:
    """The lock that settings name: either it, or why it cannot be used. Neither: none is named.
    unsigned: the problem is its signature's. fix: of the problem. sha256: of the lock file.
    unchecked: a signature lies beside it, and settings do not say whose it has to be."""

    lock: ModelLock | None = None
    problem: str = ""
    unsigned: bool = False
    fix: str = LOCK_AGAIN
    sha256: str = ""
    unchecked: bool = False


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
    return LockedModel(lock, sha256=hashlib.sha256(text.encode()).hexdigest())


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


def supply_findings(
    host: str,
    settings: Settings,
    locked: LockedModel,
    listed: Collection[str] = (),
) -> Iterator[Finding]:
    """Everything about where a model comes from and what it brings. listed: its files as the hub
    lists them, for a model without a lock; empty where nobody could ask."""
    if settings.model is None:
        return
    yield from lock_findings(host, settings, locked)
    if locked.problem:
        return
    yield from _unchecked(host, locked)
    yield from _license(host, settings, settings.model, locked.lock)
    yield from _unaccepted(host, settings.model, locked.lock, listed)
    yield from _load_format(host, settings, settings.model)
    yield from _not_locked(host, settings, settings.model, locked.lock)
    yield from _remote_code(host, settings, settings.model, locked.lock)


def _unchecked(host: str, locked: LockedModel) -> Iterator[Finding]:
    if locked.unchecked:
        yield Finding(
            "model.signature-not-checked",
            "warn",
            host,
            "model.signed_by",
            "the model's lock has a signature beside it, and nobody looks at it",
            "name the public key it has to be of: model: {signed_by: [keys/NAME.pub]}; or remove "
            "the .sig file",
            source="docs/models.md",
        )


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


def _unaccepted(
    host: str, model: Model, lock: ModelLock | None, listed: Collection[str]
) -> Iterator[Finding]:
    """Files that the model has and that settings do not accept: of a lock, since it may have been
    made without them; without one what would be pulled."""
    paths = [file.path for file in lock.files] if lock else listed
    what = "the locked model" if lock else "the model, as the hub lists it and without a lock,"
    source = str(model.lock) if lock else f"{model.endpoint}, {model.id} at {model.revision}"
    found = pickles(paths)
    if found and "pickle" not in model.accept:
        yield Finding(
            "model.pickle-weights",
            "refuse",
            host,
            model.id,
            f"{what} has {len(found)} pickled files, and loading one runs whatever code it holds",
            "lock it without them (fleet model lock --without '*.bin'), or write model: {accept: "
            "[pickle]}",
            evidence=", ".join(found[:3]),
            source=source,
        )
    found = code(paths)
    if found and "code" not in model.accept:
        yield Finding(
            "model.repository-code",
            "refuse",
            host,
            model.id,
            f"{what} brings {len(found)} files of code, which the engine would run with "
            "trust-remote-code",
            "lock it without them (fleet model lock --without '*.py'), or read them and write "
            "model: {accept: [code]}",
            evidence=", ".join(found[:3]),
            source=source,
        )


def _load_format(host: str, settings: Settings, model: Model) -> Iterator[Finding]:
    asked = settings.engine.args.get("load-format")
    if asked in PICKLE_FORMATS and "pickle" not in model.accept:
        yield Finding(
            "model.pickle-weights",
            "refuse",
            host,
            "engine.args.load-format",
            f"load-format {asked} reads pickled weights, and loading one runs whatever code it "
            "holds",
            "leave load-format out: vLLM then reads safetensors where they are; else write "
            "model: {accept: [pickle]}",
            evidence=f"engine.args.load-format: {asked}",
            source="vLLM, config/load.py",
        )


def _runs_code(settings: Settings) -> bool:
    return settings.engine.args.get("trust-remote-code") is True


def _not_locked(
    host: str, settings: Settings, model: Model, lock: ModelLock | None
) -> Iterator[Finding]:
    """Where the engine runs the model's code, that is said instead (model.code-not-locked)."""
    if lock is None and not _runs_code(settings):
        yield Finding(
            "model.not-locked",
            "warn",
            host,
            model.id,
            "nothing pins what the model is: each host takes what the hub has at the moment of its "
            f"pull, and {model.revision} may be another model tomorrow",
            f"fleet model lock INVENTORY, then model: {{lock: {lock_path(model.id, model.revision)}"
            "}; commit both",
            evidence="model.lock: null",
            source="docs/models.md",
        )


def _remote_code(
    host: str, settings: Settings, model: Model, lock: ModelLock | None
) -> Iterator[Finding]:
    if not _runs_code(settings):
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
