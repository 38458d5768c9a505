"""`fleet model sign`: say with a key that this lock is the model to be served."""

from __future__ import annotations

import getpass
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pyinfra_deploy.model.refused import Refused
from pyinfra_deploy.model.writing import present_lock, write_file
from pyinfra_deploy.operations.lock_manifest import INSTALL, NoLibrary, hashing_of, library
from pyinfra_deploy.operations.lock_signature import (
    key_hint,
    shown,
    signature_path,
    signature_problem,
)

if TYPE_CHECKING:
    import argparse

    from pyinfra_deploy.planning.model_lock import ModelLock

FAILED = 1
# The curves that model-signing takes (its _check_supported_ec_key).
CURVES = ("secp256r1", "secp384r1", "secp521r1")
PASSPHRASE = "FLEET_SIGNING_PASSPHRASE"  # noqa: S105 - the name of a variable
MAKE_KEY = (
    "make one: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -aes-256-cbc -out "
    "models.key; openssl pkey -in models.key -pubout -out keys/models.pub"
)


def register(actions: Any) -> None:
    """Add `sign`; `actions` is argparse's object for subcommands, which has no public type."""
    command = actions.add_parser(
        "sign",
        help="sign a model's lock with a key",
        description="Writes LOCK.json.sig beside the lock: a signature by OpenSSF model-signing "
        "over each file's SHA-256 and over what else the lock says. No weights are read and no "
        "network is used. model.signed_by makes deploys ask for it. A passphrase is asked for at "
        f"the terminal, or taken from the environment variable {PASSPHRASE}.",
        epilog="exit code: 0 signed, 1 refused or failed",
    )
    command.add_argument("lock", type=Path, metavar="LOCK", help="as `fleet model lock` wrote it")
    command.add_argument(
        "--key", type=Path, required=True, metavar="FILE", help="private key, PEM, elliptic curve"
    )
    command.add_argument(
        "--certificate", type=Path, action="append", default=[], metavar="FILE",
        help="of this key, PEM; again for each certificate between it and the authority's",
    )  # fmt: skip
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        for line in sign(arguments.lock, arguments.key, tuple(arguments.certificate)):
            print(line)
    except Refused as error:
        print(error, file=sys.stderr)
        return FAILED
    return 0


def sign(path: Path, key_path: Path, certificates: tuple[Path, ...]) -> list[str]:
    """Write the signature; what to say of it. Raises Refused."""
    lock = present_lock(path)
    if lock is None:
        raise Refused(f"{path} is not there", "there is nothing to sign.", "fleet model lock")
    key, passphrase = _private_key(key_path)
    if certificates and passphrase is not None:
        raise Refused(
            f"{key_path} has a passphrase, and a certificate goes with it",
            "model-signing opens keys with a passphrase only where they are used alone.",
            "give model.signed_by the public key instead, or sign with a key without a passphrase "
            "from a place that only you can read.",
        )
    text = _signature(lock, key_path, passphrase, certificates)
    place = signature_path(path)
    with tempfile.TemporaryDirectory(prefix="fleet-signing-") as name:
        # Read back by the way that the plan will, before it takes the place of the one before.
        copy, public = Path(name) / path.name, Path(name) / "public"
        signature_path(copy).write_bytes(text)
        public.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        wrong = None if certificates else signature_problem(copy, lock, [public])
    if wrong is not None:
        raise Refused(f"the new signature of {path} is not right", f"{wrong.why}.", wrong.fix)
    write_file(place, text)
    by = f"certificate {certificates[0]}" if certificates else "key"
    return [
        f"{lock.model} at {lock.revision}, {len(lock.files)} files, digest {lock.digest[:12]}",
        f"{shown(place)}: signed with {by} {key_hint(key.public_key())[:16]}; commit it with the "
        "lock",
    ]


def _private_key(path: Path) -> tuple[ec.EllipticCurvePrivateKey, bytes | None]:
    """(the key, its passphrase; None without one). Raises Refused."""
    try:
        content = path.read_bytes()
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise Refused(f"{path} cannot be read", f"{error.strerror}.", MAKE_KEY) from error
    if mode & 0o077:
        raise Refused(
            f"{path} can be read by others (mode {mode:04o})",
            "whoever can read it can sign in your name.",
            f"chmod 600 {path}; if others have had access, use a new key.",
        )
    passphrase = None
    try:
        key = serialization.load_pem_private_key(content, None)
    except TypeError:
        passphrase = _passphrase(path)
        try:
            key = serialization.load_pem_private_key(content, passphrase)
        except ValueError as error:
            raise Refused(
                f"{path} does not open with that passphrase", "it is not its.", "try again."
            ) from error
    except ValueError as error:
        raise Refused(f"{path} is no private key in PEM", f"{error}.", MAKE_KEY) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in CURVES:
        raise Refused(
            f"{path} is no key that model-signing takes",
            f"it must be of an elliptic curve: {', '.join(CURVES)}.",
            MAKE_KEY,
        )
    return key, passphrase


def _passphrase(path: Path) -> bytes:
    given = os.environ.get(PASSPHRASE)
    if given is not None:
        return given.encode()
    if not sys.stdin.isatty():
        raise Refused(
            f"{path} has a passphrase",
            "there is no terminal to ask for it at.",
            f"set the environment variable {PASSPHRASE}.",
        )
    return getpass.getpass(f"passphrase of {path}: ").encode()


def _signature(
    lock: ModelLock, key_path: Path, passphrase: bytes | None, certificates: tuple[Path, ...]
) -> bytes:
    """Made by model-signing. Raises Refused."""
    try:
        config = library("signing").Config().set_hashing_config(hashing_of(lock))
    except NoLibrary as error:
        raise Refused("model-signing is not installed here", f"{error}.", INSTALL) from error
    with tempfile.TemporaryDirectory(prefix="fleet-signing-") as name:
        place = Path(name) / "signature"
        try:
            if certificates:
                # Without further ones it wants one all the same: the first again.
                config.use_certificate_signer(
                    private_key=key_path,
                    signing_certificate=certificates[0],
                    certificate_chain=certificates[1:] or certificates,
                )
            else:
                config.use_elliptic_key_signer(private_key=key_path, password=passphrase)
            config.sign(name, place)
            return place.read_bytes()
        except (OSError, ValueError) as error:
            raise Refused(
                f"model-signing does not sign with {key_path}",
                f"{error}.",
                "do key and certificates belong together?",
            ) from error
