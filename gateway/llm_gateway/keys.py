"""What an API key looks like, what a key file holds, and whether a presented key is good.

A key is `sk-`, an id of 8 characters and a secret of 43:

    sk-k3v9x0qmT1J...43 characters...
       ^^^^^^^^ id, [a-z0-9], no secret: it is in logs and in `fleet keys list`
               ^ 256 random bits, base64url without padding (RFC 4648, section 5)

A key file holds the SHA-256 of the whole key, so who reads it cannot use it. One round of SHA-256
is enough because the secret has 256 random bits: there is no dictionary to try. (A password would
need a slow hash; this is not one.)

    {"schema": 1, "serial": 7, "keys": [
      {"id": "k3v9x0qm", "name": "chat backend", "sha256": "64 hex digits",
       "created": "2026-01-31T09:00:00Z", "expires": null}]}

A key may have more, which mode `full` heeds; a field left out or null is no limit:

    "tier": "batch"                   one of the configuration's tiers; else its default tier
    "models": ["Qwen/Qwen3-32B"]      names or aliases that the key may use; else all
    "requests_per_minute": 60
    "tokens_per_minute": 100000       of prompts and answers
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA = 1
ID_LENGTH = 8
SECRET_LENGTH = 43
# Ten thousand keys are about 2 MB; more than this is not a key file.
MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_NAME_LENGTH = 64

_ID = rf"[a-z0-9]{{{ID_LENGTH}}}"
_KEY = re.compile(rf"sk-(?P<id>{_ID})[A-Za-z0-9_-]{{{SECRET_LENGTH}}}")
# RFC 9110, 11.1: the scheme is case-insensitive. RFC 6750, 2.1: "Bearer" 1*SP token.
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +(?P<token>[!-~]+)")
_MAX_HEADER_BYTES = 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FIELDS = frozenset({"id", "name", "sha256", "created", "expires"})
_LIMITS = frozenset({"tier", "models", "requests_per_minute", "tokens_per_minute"})
# The host's own keys (fleet_host/keys.py), by which its deploy tries it: known here, whoever else
# decides about keys.
HOST_KEY_IDS = frozenset({"hostself", "hostdeny"})
# Compared with when the id is unknown, so that the work done does not tell whether an id exists.
_NO_DIGEST = bytes(32)


class KeyFileError(Exception):
    """A key file that cannot be used. The text says what is wrong with it; it holds no key."""


@dataclass(frozen=True)
class Key:
    """One key as a key file has it. `sha256` is the digest itself, `expires` in UTC or None.

    None in the others: the default tier, all models, no limit.
    """

    id: str
    name: str
    sha256: bytes
    expires: datetime | None
    tier: str | None = None
    models: frozenset[str] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True)
class KeyFile:
    """A parsed key file."""

    serial: int
    keys: tuple[Key, ...]


def parse_key_file(content: bytes) -> KeyFile:
    """Read a key file strictly: a field that is not known may be a restriction, so it is refused.

    Raises KeyFileError.
    """
    try:
        document = json.loads(content, object_pairs_hook=_object_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise KeyFileError(f"it is not valid JSON ({error})") from error
    if not isinstance(document, dict):
        raise KeyFileError("the outermost value must be an object")
    if document.get("schema") != SCHEMA or isinstance(document.get("schema"), bool):
        raise KeyFileError(
            f"schema is {document.get('schema')!r}, this version of the service reads {SCHEMA}"
        )
    unknown = set(document) - {"schema", "serial", "keys"}
    if unknown:
        raise KeyFileError(f"unknown fields: {', '.join(sorted(unknown))}")
    serial = document.get("serial")
    if not isinstance(serial, int) or isinstance(serial, bool) or serial < 0:
        raise KeyFileError("serial must be a whole number, 0 or more")
    entries = document.get("keys")
    if not isinstance(entries, list):
        raise KeyFileError("keys must be a list")
    keys = tuple(_parse_key(entry, f"keys[{index}]") for index, entry in enumerate(entries))
    ids = [key.id for key in keys]
    if len(set(ids)) != len(ids):
        raise KeyFileError("two keys have the same id")
    return KeyFile(serial, keys)


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a field appears twice in one object")
    return document


def _parse_key(entry: object, where: str) -> Key:
    if not isinstance(entry, dict):
        raise KeyFileError(f"{where} must be an object")
    if set(entry) - _LIMITS != _FIELDS:
        raise KeyFileError(
            f"{where} must have exactly the fields {', '.join(sorted(_FIELDS))}, "
            f"and may have {', '.join(sorted(_LIMITS))}"
        )
    identifier, name, digest = entry["id"], entry["name"], entry["sha256"]
    if not isinstance(identifier, str) or not re.fullmatch(_ID, identifier):
        raise KeyFileError(f"{where}.id must be {ID_LENGTH} characters of a-z and 0-9")
    if not isinstance(name, str) or not is_name(name):
        raise KeyFileError(f"{where}.name must be 1 to {MAX_NAME_LENGTH} printable characters")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise KeyFileError(f"{where}.sha256 must be 64 hexadecimal digits in lower case")
    _parse_time(entry["created"], f"{where}.created")
    expires = entry["expires"]
    return Key(
        id=identifier,
        name=name,
        sha256=bytes.fromhex(digest),
        expires=None if expires is None else _parse_time(expires, f"{where}.expires"),
        tier=_tier(entry.get("tier"), where),
        models=_models(entry.get("models"), where),
        requests_per_minute=_limit(entry, "requests_per_minute", where),
        tokens_per_minute=_limit(entry, "tokens_per_minute", where),
    )


def _tier(value: object, where: str) -> str | None:
    if value is None or (isinstance(value, str) and is_name(value)):
        return value
    raise KeyFileError(f"{where}.tier must be the name of a tier")


def _models(value: object, where: str) -> frozenset[str] | None:
    if value is None:
        return None
    # An empty list would be a key for nothing: more likely a mistake than a wish.
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise KeyFileError(f"{where}.models must be a list of at least one model's name")
    return frozenset(value)


def _limit(entry: Mapping[str, object], name: str, where: str) -> int | None:
    value = entry.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise KeyFileError(f"{where}.{name} must be a whole number, 1 or more")
    return value


def is_name(text: str) -> bool:
    """Whether a text can be the name of a key: one printable line in any language."""
    return 0 < len(text) <= MAX_NAME_LENGTH and text.isprintable() and text == text.strip()


def _parse_time(text: object, where: str) -> datetime:
    try:
        parsed = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise KeyFileError(f"{where} must be a time such as 2026-01-31T09:00:00Z, with its zone")
    return parsed.astimezone(UTC)


def bearer_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key in ASGI headers (names in lower case), or None unless there is exactly one.

    Two Authorization headers are refused rather than one of them picked: a proxy and a server
    that pick different ones are how such checks get bypassed.
    """
    values = [value for name, value in headers if name == b"authorization"]
    if len(values) != 1 or len(values[0]) > _MAX_HEADER_BYTES:
        return None
    match = _BEARER.fullmatch(values[0])
    return match["token"].decode("ascii") if match else None


def is_hosts_own(presented: str) -> bool:
    """Whether a presented key has the id of one of the host's own."""
    match = _KEY.fullmatch(presented)
    return match is not None and match["id"] in HOST_KEY_IDS


def still_good(keys: Mapping[str, Key], key: Key, now: datetime) -> bool:
    """Whether a key that was good when its request began would be so now."""
    current = keys.get(key.id)
    if current is None or current.sha256 != key.sha256:
        return False
    return current.expires is None or now < current.expires


def find_key(keys: Mapping[str, Key], presented: str, now: datetime) -> Key | None:
    """The key that was presented, or None when it is malformed, unknown, wrong or expired.

    The id picks the candidate; only the comparison of digests decides, in constant time.
    """
    match = _KEY.fullmatch(presented)
    if match is None:
        return None
    candidate = keys.get(match["id"])
    digest = hashlib.sha256(presented.encode("ascii")).digest()
    expected = candidate.sha256 if candidate else _NO_DIGEST
    if not hmac.compare_digest(digest, expected) or candidate is None:
        return None
    if candidate.expires is not None and now >= candidate.expires:
        return None
    return candidate
