"""Whether a model's lock is signed by somebody whom settings name (model.signed_by). No network."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pyinfra_deploy.operations.lock_manifest import (
    HEAD,
    INSTALL,
    NoLibrary,
    hashing_of,
    head,
    library,
    signed_files,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyinfra_deploy.planning.model_lock import ModelLock

KEY, CERTIFICATE = "publicKey", "x509CertificateChain"
MISMATCH = "Signature mismatch"
_NAMED = 5
_LARGEST_BYTES = 64 << 20


@dataclass(frozen=True)
class Unsigned:
    """Why a lock does not count as signed, and what to do."""

    why: str
    fix: str


@dataclass(frozen=True)
class _Trusted:
    """A file of model.signed_by. hint: the SHA-256 by which a signature names its key."""

    path: Path
    kind: str
    hint: str | None = None


def signature_path(lock: Path) -> Path:
    """Beside the lock."""
    return lock.with_name(f"{lock.name}.sig")


def shown(path: Path) -> str:
    """As it is typed, and as settings name it where the repository is the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def sign_command(lock: Path) -> str:
    return f"fleet model sign {shown(lock)} --key FILE"


def signature_problem(lock_path: Path, lock: ModelLock, keys: Sequence[Path]) -> Unsigned | None:
    """None when the lock, every file and every word of it, is signed by one of `keys`: public keys
    (PEM, elliptic curve), or certificates of an authority."""
    place = signature_path(lock_path)
    sign = f"have it signed: {sign_command(lock_path)}"
    try:
        trusted = [_trusted(path) for path in keys]
    except _Unusable as error:
        return Unsigned(str(error), "correct model.signed_by, or the file that it names")
    try:
        text = _read(place)
        document = json.loads(text)
        material = document["verificationMaterial"]
        statement = json.loads(base64.b64decode(document["dsseEnvelope"]["payload"]))
        kind = CERTIFICATE if CERTIFICATE in material else KEY
        hint = material[kind].get("hint") if kind == KEY else None
    except FileNotFoundError:
        return Unsigned(f"it is not signed: {shown(place)} is not there", sign)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Unsigned(
            f"{shown(place)} is no signature that could be read ({type(error).__name__}: {error})",
            f"bring it back from git, or {sign}",
        )
    fitting = [one for one in trusted if one.kind == kind and (not hint or one.hint == hint)]
    if not fitting:
        by = f"key {hint[:16]}" if hint else ("a certificate" if kind == CERTIFICATE else "a key")
        known = ", ".join(f"{one.path.name} ({_words(one)})" for one in trusted)
        return Unsigned(
            f"it is signed with {by}, and model.signed_by has {known}",
            f"{sign}; or add that public key to model.signed_by, if you trust whoever has it",
        )
    try:
        problems = [_verified(text, statement, lock, one) for one in fitting]
    except NoLibrary as error:
        why = f"its signature cannot be verified: model-signing is not installed here ({error})"
        return Unsigned(why, INSTALL)
    if all(problems):
        return Unsigned(next(filter(None, problems)), sign)
    return _about_head(statement, lock, sign)


def _words(trusted: _Trusted) -> str:
    return f"key {trusted.hint[:16]}" if trusted.hint else "certificates"


def _read(path: Path) -> str:
    content = path.read_bytes()
    if len(content) > _LARGEST_BYTES:
        raise ValueError(f"it has {len(content)} bytes")
    return content.decode()


def _verified(text: str, statement: Any, lock: ModelLock, trusted: _Trusted) -> str | None:
    """What model-signing has against it; None when it is right. Raises NoLibrary."""
    config = library("verifying").Config().set_hashing_config(hashing_of(lock))
    with tempfile.TemporaryDirectory(prefix="fleet-signature-") as name:
        # The very text of which the statement was read.
        copy = Path(name) / "signature"
        copy.write_text(text, encoding="utf-8")
        try:
            # It prints a warning about signatures of before its version 1.0.
            with contextlib.redirect_stdout(io.StringIO()):
                if trusted.kind == CERTIFICATE:
                    config.use_certificate_verifier(certificate_chain=[trusted.path])
                else:
                    config.use_elliptic_key_verifier(public_key=trusted.path)
                config.verify(name, copy)
        except Exception as error:  # whatever it raises, it has not verified
            return _in_words(error, statement, lock, trusted)
    return None


def _in_words(error: Exception, statement: Any, lock: ModelLock, trusted: _Trusted) -> str:
    said = str(error)
    if said.startswith(MISMATCH):
        # It comes after the signature itself was found right.
        files = _differences(statement, lock) or said
        return (
            f"the lock's files are not the signed ones, it was changed after it was signed: {files}"
        )
    told = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return f"its signature is not right by {trusted.path.name} ({told})"


def _differences(statement: Any, lock: ModelLock) -> str:
    """The first files that differ; "" where the statement has no such list."""
    resources = statement.get("predicate", {}).get("resources", [])
    signed = {str(one["name"]): str(one["digest"]) for one in resources}
    now = {file.path: file.sha256 for file in signed_files(lock)}
    if not signed:
        return ""
    words = [
        f"{path} is another" for path in sorted(now) if signed.get(path, now[path]) != now[path]
    ]
    words += [f"{path} was not signed" for path in sorted(set(now) - set(signed))]
    words += [f"{path} is missing" for path in sorted(set(signed) - set(now))]
    more = [f"{len(words) - _NAMED} more"] if len(words) > _NAMED else []
    return ", ".join(words[:_NAMED] + more)


def _about_head(statement: Any, lock: ModelLock, sign: str) -> Unsigned | None:
    """What the lock says beside its files. A signature that model-signing itself made, of a
    directory, says nothing of that."""
    signed = statement.get("predicate", {}).get("serialization", {}).get(HEAD)
    if signed is None:
        return None
    now = head(lock)
    different = [
        f"{key} was {signed.get(key)!r} and is {now[key]!r}"
        for key in now
        if signed.get(key) != now[key]
    ]
    if different:
        return Unsigned(f"it was changed after it was signed: {'; '.join(different)}", sign)
    return None


class _Unusable(Exception):
    """A file of model.signed_by with which nothing can be verified."""


def _trusted(path: Path) -> _Trusted:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _Unusable(f"the public key {path} cannot be read: {error.strerror}") from error
    if b"PRIVATE KEY" in content:
        raise _Unusable(
            f"{path} holds a private key, which does not belong here (openssl ec -in KEY -pubout)"
        )
    if b"BEGIN CERTIFICATE" in content:
        return _Trusted(path, CERTIFICATE)
    try:
        key = serialization.load_pem_public_key(content)
    except ValueError as error:
        raise _Unusable(f"{path} is neither a public key nor a certificate in PEM") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise _Unusable(f"{path} is no elliptic-curve key, and model-signing takes no other")
    return _Trusted(path, KEY, key_hint(key))


def key_hint(key: ec.EllipticCurvePublicKey) -> str:
    """As model-signing names a key in its signatures: SHA-256 of its PEM."""
    pem = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(pem).hexdigest()
