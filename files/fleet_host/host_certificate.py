"""What this host shows to other hosts: a key that never leaves it, a certificate, the CA.

/etc/llm-gateway/mtls             link to the set in force
/etc/llm-gateway/mtls.d/SERIAL/   host.key, host.crt, ca.crt: one set
/etc/llm-gateway/mtls.d/next/     host.key of a request that is not answered yet

A renewal makes a new key. The link is what changes, so that nobody ever reads the key of one set
with the certificate of another, not even after a power cut.
"""

from __future__ import annotations

import grp
import hashlib
import os
from typing import TYPE_CHECKING, Any

from . import durable, events, fields, layout, snapshot, tls
from .errors import HostError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

FIRST_LETTERS = 16


def in_force() -> Path:
    return layout.etc_root() / "llm-gateway" / "mtls"


def sets() -> Path:
    return layout.etc_root() / "llm-gateway" / "mtls.d"


def request(asked: dict[str, Any]) -> dict[str, Any]:
    """`mtls request` {name, reader} -> {csr: PEM}: a new key (EC P-256), and a request with it.

    reader: the group that may read the key, null for root alone. A key that was made for a request
    that nobody answered is replaced.
    """
    name = fields.text(asked, "name")
    if not tls.HOST_NAME.fullmatch(name) or "*" in name:
        raise SpecError(
            f"{name!r} cannot be the name of a certificate",
            "a host name is needed, of letters, digits, dots and hyphens.",
            "Correct it.",
        )
    group = _group(asked)
    text = tls.openssl(
        ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
        "making the key for other hosts",
    )
    place = sets() / "next"
    durable.make_directories(in_force().parent)
    _own_directory(sets(), group)
    _own_directory(place, group)
    mode = 0o600 if group is None else 0o640
    durable.write_file(place / "host.key", text, mode=mode, gid=-1 if group is None else group)
    csr = tls.openssl(
        ["req", "-new", "-key", str(place / "host.key"), "-subj", "/CN=host",
         "-addext", f"subjectAltName=DNS:{name}"],
        "making a certificate request",
    )  # fmt: skip
    return {"csr": csr}


def install(asked: dict[str, Any]) -> dict[str, Any]:
    """`mtls install` {certificate: PEM, ca: PEM} -> {certificate}: put the requested set in
    force, and remove the former ones. HostError unless it fits the new key and is valid now."""
    certificate, authority = fields.text(asked, "certificate"), fields.text(asked, "ca")
    place = sets() / "next"
    key = place / "host.key"
    if not key.exists():
        raise HostError(
            "the certificate for other hosts cannot be installed",
            f"there is no key {key} that it could belong to.",
            "Run 'mtls request' first and have its request signed.",
        )
    ours = tls.openssl(["pkey", "-in", str(key), "-pubout"], f"reading {key}")
    theirs = tls.openssl(["x509", "-noout", "-pubkey"], "reading the certificate", certificate)
    if ours != theirs:
        raise HostError(
            "the certificate is not for this host's new key",
            f"its public key differs from that of {key}.",
            "Sign the request that this host makes now: run the deploy again.",
        )
    tls.openssl(["x509", "-noout", "-checkend", "0"], "the certificate has ended; checking it",
                certificate)  # fmt: skip
    tls.openssl(["x509", "-noout"], "reading the authority's certificate", authority)
    durable.write_file(place / "host.crt", certificate, mode=0o644)
    durable.write_file(place / "ca.crt", authority, mode=0o644)
    digest = hashlib.sha256(certificate.encode()).hexdigest()[:FIRST_LETTERS]
    target = sets() / digest
    durable.publish_directory(place, target)
    if in_force().is_dir() and not in_force().is_symlink():
        raise HostError(
            f"{in_force()} is a directory",
            "it has to be a link to the set of files in force.",
            f"Move it away, and run again: mv {in_force()} {in_force()}.old",
        )
    durable.replace_symlink(in_force(), f"{sets().name}/{digest}")
    for former in sets().iterdir():
        if former.name != digest:
            durable.remove_tree(former)
    state = snapshot.certificate_state(str(in_force() / "host.crt"))
    events.record(
        "certificate for other hosts installed", not_after=state["not_after"], sans=state["sans"]
    )
    return {"certificate": state}


def _group(asked: dict[str, Any]) -> int | None:
    """The id of the group that reads the key; None for root alone."""
    reader = fields.optional_text(asked, "reader")
    if reader is None:
        return None
    try:
        return grp.getgrnam(reader).gr_gid
    except KeyError as error:
        raise HostError(
            f"there is no group {reader} on the host",
            "the gateway service reads the key by it.",
            "Run the deploy from its beginning; it makes the users first.",
        ) from error


def _own_directory(path: Path, group: int | None) -> None:
    """A directory that only root, and the group that reads the key, may enter."""
    durable.make_directories(path, mode=0o700)
    os.chown(path, -1, os.getegid() if group is None else group)
    path.chmod(0o700 if group is None else 0o750)
