"""The gateway's TLS key, which never leaves the host, and the certificate that is issued for it."""

from __future__ import annotations

import ipaddress
import re
import subprocess
from typing import TYPE_CHECKING, Any

from . import durable, events, fields, layout, snapshot
from .errors import HostError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

OPENSSL_TIMEOUT_SECONDS = 30.0
# In a subject and in a section of openssl's configuration: nothing that either could take for more.
HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9*]([A-Za-z0-9.-]*[A-Za-z0-9])?")
# X.509 limits a common name to 64 characters (RFC 5280, ub-common-name); clients look at the
# alternative names only.
COMMON_NAME_LENGTH = 64
KEY, NEXT_KEY = "server.key", "server.key.next"


def directory() -> Path:
    return layout.etc_root() / "llm" / "tls"


def openssl(arguments: list[str], what: str, stdin: str = "") -> str:
    """Run openssl and return its stdout; HostError with its last line. No secret is in argv."""
    try:
        done = subprocess.run(
            ["openssl", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=OPENSSL_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(
            f"{what} failed", f"openssl: {error}.", "Install the package openssl."
        ) from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["openssl printed no reason"]
        raise HostError(f"{what} failed", f"{lines[-1]}.", "See openssl's words below.", lines)
    return done.stdout


def request(asked: dict[str, Any]) -> dict[str, Any]:
    """`tls request` {names, addresses, new_key?} -> {csr: PEM, key_created: bool, new_key: bool}.

    The key (EC P-256, 0600, root's) is made once and kept: a renewal needs no new one. new_key: one
    is made beside it, and `tls install` of its certificate puts it in the former's place.
    """
    names, addresses = fields.texts(asked, "names"), fields.texts(asked, "addresses")
    if not names or not all(HOST_NAME.fullmatch(name) for name in names):
        raise SpecError(
            f"{names!r} cannot be the names of a certificate",
            "at least one host name is needed, of letters, digits, dots and hyphens.",
            "Correct gateway.server_name.",
        )
    alternatives = [f"DNS:{name}" for name in names]
    for address in addresses:
        try:
            alternatives.append(f"IP:{ipaddress.ip_address(address)}")
        except ValueError as error:
            raise SpecError(f"{address!r} is no IP address", f"{error}.", "Correct it.") from error
    key = directory() / (NEXT_KEY if asked.get("new_key") is True else KEY)
    created = not key.exists()
    if created:
        durable.make_directories(key.parent, mode=0o750)
        text = openssl(
            ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
            "making the TLS key",
        )
        durable.write_file(key, text, mode=0o600)
        events.record("TLS key made", path=str(key))
    csr = openssl(
        [
            *("req", "-new", "-key", str(key), "-subj", f"/CN={names[0][:COMMON_NAME_LENGTH]}"),
            *("-addext", "subjectAltName=" + ",".join(alternatives)),
        ],
        f"making a certificate request with {key}",
    )
    return {"csr": csr, "key_created": created, "new_key": asked.get("new_key") is True}


def install(asked: dict[str, Any]) -> dict[str, Any]:
    """`tls install` {certificate_chain: PEM, leaf first; ca: PEM, optional}
    -> {changed, certificate}. HostError unless it fits the host's key and is valid now.

    ca, the authority's own certificate, is kept beside it for `verify`.
    """
    chain, authority = fields.text(asked, "certificate_chain"), fields.optional_text(asked, "ca")
    place = directory()
    key, certificate, following = place / KEY, place / "server.crt", place / NEXT_KEY
    if not key.exists() and not following.exists():
        raise HostError(
            "the certificate cannot be installed",
            f"there is no key {key} that it could belong to.",
            "Run 'tls request' first and have its request signed.",
        )
    what = "reading the certificate"
    theirs = openssl(["x509", "-noout", "-pubkey"], what, chain)
    for_following = following.exists() and _public(following) == theirs
    if not for_following and (not key.exists() or _public(key) != theirs):
        raise HostError(
            "the certificate is not for this host's key",
            f"its public key differs from that of {key}.",
            "Sign the request that this host makes now: run the deploy again.",
        )
    # Exit status 1 when it has ended; openssl says so on stdout only.
    openssl(["x509", "-noout", "-checkend", "0"], "the certificate has ended; checking it", chain)
    if for_following:
        # Nginx has read both and goes on with what it has until it is told to read them again.
        durable.write_file(key, following.read_text(), mode=0o600)
    changed = _write(certificate, chain)
    if for_following:
        durable.remove_file(following)
        events.record("TLS key replaced", path=str(key))
    if authority is not None:
        openssl(["x509", "-noout"], "reading the authority's certificate", authority)
        changed = _write(place / "ca.crt", authority) or changed
    state = snapshot.certificate_state(str(certificate))
    if changed:
        events.record("certificate installed", not_after=state["not_after"], sans=state["sans"])
    return {"changed": changed, "certificate": state}


def _public(key: Path) -> str:
    return openssl(["pkey", "-in", str(key), "-pubout"], f"reading {key}")


def _write(path: Path, text: str) -> bool:
    if path.is_file() and path.read_text() == text:
        return False
    durable.write_file(path, text, mode=0o644)
    return True
