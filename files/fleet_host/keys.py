"""The gateway's key files: digests only, never a key, apart from the host's own for `verify`.

{llm_root}/gateway/keys.json        the inventory's, by `keys push`, with a serial number
{llm_root}/gateway/verify-key.json  the host's own verification key's digest
/etc/llm/verify-key                 that key itself, 0600 root

The format is the gateway service's (llm_gateway/keys.py), which reads it strictly; what it would
refuse is refused here first, because a key file that it cannot read leaves it at its old one.
"""

from __future__ import annotations

import base64
import grp
import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING, Any

from . import durable, events, fields, layout
from .errors import HostError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

FILE_SCHEMA = 1
READER_GROUP = "llm-gateway"
ENTRY_FIELDS = {"id", "name", "sha256", "created", "expires"}
LIMIT_FIELDS = {"tier", "models", "requests_per_minute", "tokens_per_minute"}
IDENTIFIER = re.compile(r"[a-z0-9]{8}")
DIGEST = re.compile(r"[0-9a-f]{64}")
# An id that `fleet keys create` draws with a chance of 36^-8, and that reads well in a log.
VERIFY_ID = "hostself"
# May use no model: by it `verify` sees that the models of a key are heeded.
DENIED_ID = "hostdeny"
NO_MODEL = "none, of the key that is to be refused"
VERIFY_KEY = re.compile(rf"sk-{VERIFY_ID}[A-Za-z0-9_-]{{43}}")


def keys_path() -> Path:
    return layout.llm_root() / "gateway" / "keys.json"


def verify_file_path() -> Path:
    return layout.llm_root() / "gateway" / "verify-key.json"


def verify_key_path() -> Path:
    return layout.etc_root() / "llm" / "verify-key"


def reader_gid() -> int:
    try:
        return grp.getgrnam(READER_GROUP).gr_gid
    except KeyError as error:
        raise HostError(
            "the key file cannot be written",
            f"there is no group {READER_GROUP}, which alone may read it.",
            "Run the deploy, which creates the gateway's user first.",
        ) from error


def push(request: dict[str, Any]) -> dict[str, Any]:
    """`keys push` {serial, keys: [{id, name, sha256, created, expires, ...}]} -> {changed, serial}.

    A serial number below the host's is refused: an old checkout must not bring revoked keys back.
    """
    serial = fields.whole(request, "serial")
    entries = request.get("keys")
    if not isinstance(entries, list):
        raise SpecError("the spec's 'keys' is no list", "it holds the digests.", "Give 'keys'.")
    for position, entry in enumerate(entries):
        _check_entry(entry, position)
    path = keys_path()
    held = durable.read_json(path)
    document = {"schema": FILE_SCHEMA, "serial": serial, "keys": entries}
    if held == document and _is_private(path):
        return {"changed": False, "serial": serial}
    if held is not None and held["serial"] > serial:
        raise HostError(
            f"keys with serial number {serial} are older than what this host has",
            f"{path} is at {held['serial']}. Going back could bring revoked keys to life.",
            "Update this checkout's keys.json (git pull) and push again.",
        )
    if held is not None and held["serial"] == serial and held["keys"] != entries:
        raise HostError(
            f"serial number {serial} stands for two different sets of keys",
            f"{path} has the same number and other keys: two checkouts were changed independently.",
            "Merge their keys.json, raise its serial number by one ('fleet keys' does so), push.",
        )
    durable.make_directories(path.parent)
    durable.write_json(path, document, mode=0o640, gid=reader_gid())
    events.record("keys pushed", serial=serial, keys=len(entries))
    return {"changed": True, "serial": serial}


def _check_entry(entry: Any, position: int) -> None:
    valid = (
        isinstance(entry, dict)
        and set(entry) - LIMIT_FIELDS == ENTRY_FIELDS
        and isinstance(entry["id"], str)
        and IDENTIFIER.fullmatch(entry["id"])
        and isinstance(entry["sha256"], str)
        and DIGEST.fullmatch(entry["sha256"])
    )
    if not valid:
        raise SpecError(
            f"keys[{position}] is malformed",
            f"it needs {', '.join(sorted(ENTRY_FIELDS))}, sha256 as 64 hex digits, and may have "
            f"{', '.join(sorted(LIMIT_FIELDS))}.",
            "Are the control side and this program of one version?",
        )


def _is_private(path: Path) -> bool:
    status = path.stat()
    return status.st_mode & 0o7777 == 0o640 and status.st_gid == reader_gid()


def denied_key() -> str:
    """The host's second key: made from the first, so that it lies nowhere."""
    own = verify_key_path().read_text().strip()
    secret = hmac.digest(own.encode(), DENIED_ID.encode(), "sha256")
    return f"sk-{DENIED_ID}{base64.urlsafe_b64encode(secret).rstrip(b'=').decode()}"


def verify_key(request: dict[str, Any]) -> dict[str, Any]:
    """`keys verify-key` {full?} -> {changed, id, sha256}: make the host's own key, or mend its
    files. full: with the second one, whose limit is heeded in gateway.mode full alone.

    The key itself is in no answer: only `verify`, on this host, uses it.
    """
    path = verify_key_path()
    key = path.read_text().strip() if path.exists() else ""
    changed = not VERIFY_KEY.fullmatch(key)
    if changed:
        key = f"sk-{VERIFY_ID}{secrets.token_urlsafe(32)}"
        durable.make_directories(path.parent)
        durable.write_file(path, key + "\n", mode=0o600)
    digest = hashlib.sha256(key.encode()).hexdigest()
    public = verify_file_path()
    held = durable.read_json(public)
    entries = held.get("keys") if isinstance(held, dict) else None
    digests = [digest]
    if request.get("full") is True:
        digests.append(hashlib.sha256(denied_key().encode()).hexdigest())
    if [entry.get("sha256") for entry in entries or ()] != digests or not _is_private(public):
        durable.make_directories(public.parent)
        document = {"schema": FILE_SCHEMA, "serial": 0, "keys": _own_entries(digests)}
        durable.write_json(public, document, mode=0o640, gid=reader_gid())
        changed = True
    return {"changed": changed, "id": VERIFY_ID, "sha256": digest}


def _own_entries(digests: list[str]) -> list[dict[str, Any]]:
    shared = {"created": events.utc_now(), "expires": None}
    named: list[dict[str, Any]] = [
        {"id": VERIFY_ID, "name": "verification by the host itself"},
        {"id": DENIED_ID, "name": "verification: may use no model", "models": [NO_MODEL]},
    ]
    return [
        {**entry, "sha256": digest, **shared}
        for entry, digest in zip(named, digests)  # noqa: B905 - one digest in mode direct
    ]
