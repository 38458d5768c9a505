"""keys.json of an inventory: digests of API keys and a serial number that only grows.

The format and the shape of a key are described in gateway/llm_gateway/keys.py, which reads them on
the hosts; a test holds the two together. The file has no secret in it and is committed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import string
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.keys.durable import create_file, locked, write_file
from pyinfra_deploy.keys.errors import KeysError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyinfra_deploy.settings.fleet import Fleet

SCHEMA = 1
FIRST_KEY = "first"
_ID_LENGTH = 8
_ID_ALPHABET = string.ascii_lowercase + string.digits
_SECRET_BYTES = 32
_MAX_NAME_LENGTH = 64
_FIELDS = {"id", "name", "sha256", "created", "expires"}
_LIMITS = {"tier", "models", "requests_per_minute", "tokens_per_minute"}


@dataclass(frozen=True)
class KeyRecord:
    """A key as keys.json has it. Times in UTC as `2026-01-31T09:00:00Z`; sha256 in hex."""

    id: str
    name: str
    sha256: str
    created: str
    expires: str | None
    # Heeded with gateway.mode: full. None: the default tier, all models, no limit.
    tier: str | None = None
    models: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True)
class Limits:
    """What a key may do, as `fleet keys create` is told; None is no limit."""

    tier: str | None = None
    models: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True)
class KeyFile:
    """What is in keys.json. A file that does not exist is serial 0 without keys."""

    serial: int
    keys: tuple[KeyRecord, ...]


@dataclass(frozen=True)
class NewKey:
    """A key just made. The plaintext exists only here; repr() does not show it."""

    record: KeyRecord
    plaintext: str

    def __repr__(self) -> str:
        return f"NewKey({self.record!r}, plaintext=********)"


def keys_path(fleet: Fleet) -> Path:
    return fleet.directory / "keys.json"


def first_key_path(fleet: Fleet) -> Path:
    return fleet.directory / "first-key.txt"


def new_key(
    name: str, now: datetime, expires: datetime | None, limits: Limits = NO_LIMITS
) -> NewKey:
    """Make a key, without writing it anywhere. 256 random bits of the operating system."""
    identifier = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
    secret = base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).rstrip(b"=").decode()
    plaintext = f"sk-{identifier}{secret}"
    record = KeyRecord(
        id=identifier,
        name=name,
        sha256=hashlib.sha256(plaintext.encode()).hexdigest(),
        created=format_time(now),
        expires=format_time(expires) if expires else None,
        **asdict(limits),
    )
    return NewKey(record, plaintext)


def create(
    path: Path,
    name: str,
    expires: datetime | None = None,
    *,
    out: Path | None = None,
    limits: Limits = NO_LIMITS,
) -> NewKey:
    """Add a key to keys.json. Raises KeysError when there is one of that name.

    out: a file for the plaintext, mode 0600, that must not exist. It is written first: a key that
    nobody has is worthless, a file with an unknown key is harmless.
    """
    _check_name(path, name)
    _check_limits(path, name, limits)
    now = datetime.now(UTC)
    if expires is not None and expires <= now:
        raise KeysError(
            f"cannot create the key {name!r}",
            f"it would have expired already, on {format_time(expires)}.",
            "Give a later --expires.",
        )
    with locked(path.parent):
        current = read(path)
        if any(key.name == name for key in current.keys):
            raise KeysError(
                f"cannot create the key {name!r}",
                f"{path} has a key of that name, and a name is how a key is revoked.",
                f"Choose another name, or first: fleet keys revoke INVENTORY {name}",
            )
        created = new_key(name, now, expires, limits)
        if out is not None:
            _write_plaintext(out, created)
        _write(path, KeyFile(current.serial + 1, (*current.keys, created.record)))
    return created


def find(path: Path, id_or_name: str) -> KeyRecord:
    """One key of keys.json. Raises KeysError when there is no such key."""
    return _find(path, read(path), id_or_name, "show")


def revoke(path: Path, id_or_name: str) -> KeyRecord:
    """Take a key out of keys.json. Raises KeysError when there is no such key."""
    with locked(path.parent):
        current = read(path)
        gone = _find(path, current, id_or_name, "revoke")
        rest = tuple(key for key in current.keys if key != gone)
        _write(path, KeyFile(current.serial + 1, rest))
    return gone


def rotate(
    path: Path, id_or_name: str, keep_until: datetime, *, out: Path | None = None
) -> tuple[NewKey, KeyRecord]:
    """A new key with the name and the limits of an old one, which is good until `keep_until`.

    Returns (the new key, the old one as it is now). The old one's name says when it ends. A key
    that expires keeps that end for its successor.
    """
    with locked(path.parent):
        current = read(path)
        old = _find(path, current, id_or_name, "rotate")
        now = datetime.now(UTC)
        ends = None if old.expires is None else parse_time(old.expires, "expires")
        if ends is not None and ends <= now:
            raise KeysError(
                f"cannot rotate {id_or_name!r}",
                f"it expired on {old.expires}: a successor would have expired too.",
                "Create a new key, with --expires or without.",
            )
        limits = Limits(old.tier, old.models, old.requests_per_minute, old.tokens_per_minute)
        created = new_key(old.name, now, ends, limits)
        until = keep_until if ends is None else min(keep_until, ends)
        suffix = f" (old {old.id})"
        former = replace(
            old,
            name=old.name[: _MAX_NAME_LENGTH - len(suffix)].rstrip() + suffix,
            expires=format_time(until),
        )
        if out is not None:
            _write_plaintext(out, created)
        rest = tuple(former if key == old else key for key in current.keys)
        _write(path, KeyFile(current.serial + 1, (*rest, created.record)))
    return created, former


def _find(path: Path, current: KeyFile, id_or_name: str, doing: str) -> KeyRecord:
    found = [key for key in current.keys if id_or_name in (key.id, key.name)]
    if len(found) != 1:
        known = ", ".join(f"{key.id} ({key.name})" for key in current.keys) or "none"
        raise KeysError(
            f"cannot {doing} {id_or_name!r}",
            f"{path} has {len(found) or 'no'} key{'s' if found else ''} with that id or name; "
            f"it has: {known}.",
            "Give the id as `fleet keys list INVENTORY` prints it.",
        )
    return found[0]


def ensure_first_key(fleet: Fleet) -> Path | None:
    """The file with the key `first`, made when the inventory never had a key; for the lab.

    Returns None when the settings of no gateway host ask for it, or when keys were managed since
    and the file is gone or its key is revoked: what an operator removed does not come back.
    """
    if not any(
        host.settings.gateway is not None and host.settings.gateway.create_first_key
        for host in fleet.hosts.values()
        if "gateway" in host.groups
    ):
        return None
    keys, plain = keys_path(fleet), first_key_path(fleet)
    with locked(keys.parent):
        current = read(keys)
        if current.serial == 0:
            created = new_key(FIRST_KEY, datetime.now(UTC), None)
            write_file(plain, f"{created.plaintext}\n".encode(), mode=0o600)
            _write(keys, KeyFile(1, (created.record,)))
            return plain
    try:
        digest = hashlib.sha256(plain.read_bytes().strip()).hexdigest()
    except FileNotFoundError:
        return None
    return plain if any(key.sha256 == digest for key in current.keys) else None


def read(path: Path) -> KeyFile:
    """Read keys.json strictly. Raises KeysError naming the file and the place in it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return KeyFile(0, ())
    except OSError as error:
        raise KeysError(
            f"cannot read {path}", f"{error.strerror}.", "Mend its permissions."
        ) from error
    try:
        return _parse(json.loads(content))
    except (ValueError, TypeError, KeyError) as error:
        raise KeysError(
            f"{path} is not a key file that this version can use",
            f"{error}.",
            "It is written by `fleet keys` alone. After a merge conflict keep every key of both "
            "sides and a serial one above the higher one; otherwise restore it from git.",
        ) from error


def to_document(serial: int, keys: Sequence[KeyRecord]) -> dict[str, Any]:
    """The JSON document of a key file, as hosts and the gateway service read it."""
    return {"schema": SCHEMA, "serial": serial, "keys": [to_entry(key) for key in keys]}


def to_entry(key: KeyRecord) -> dict[str, Any]:
    """A key as keys.json has it: a limit that it does not have is left out."""
    return {
        field: list(value) if isinstance(value, tuple) else value
        for field, value in asdict(key).items()
        if value is not None or field not in _LIMITS
    }


def format_time(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _parse(document: Any) -> KeyFile:
    if not isinstance(document, dict) or set(document) != {"schema", "serial", "keys"}:
        raise ValueError("it must be an object with schema, serial and keys")
    if document["schema"] != SCHEMA:
        raise ValueError(f"its schema is {document['schema']!r}, this version knows {SCHEMA}")
    serial = document["serial"]
    if not isinstance(serial, int) or isinstance(serial, bool) or serial < 0:
        raise ValueError(f"serial {serial!r} is not a whole number of 0 or more")
    if not isinstance(document["keys"], list):
        raise ValueError("keys must be a list")
    keys = tuple(_parse_key(entry, index) for index, entry in enumerate(document["keys"]))
    for field in ("id", "name"):
        values = [getattr(key, field) for key in keys]
        if len(set(values)) != len(values):
            raise ValueError(f"two keys have the same {field}")
    return KeyFile(serial, keys)


def _parse_key(entry: Any, index: int) -> KeyRecord:
    where = f"keys[{index}]"
    if not isinstance(entry, dict) or set(entry) - _LIMITS != _FIELDS:
        raise ValueError(
            f"{where} must have id, name, sha256, created and expires, may have "
            f"{', '.join(sorted(_LIMITS))}, and nothing else"
        )
    for field in ("id", "name", "sha256", "created"):
        if not isinstance(entry[field], str):
            raise ValueError(f"{where}.{field} must be text")
    if not re.fullmatch(rf"[a-z0-9]{{{_ID_LENGTH}}}", entry["id"]):
        raise ValueError(f"{where}.id must be {_ID_LENGTH} characters of a-z and 0-9")
    if not re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]):
        raise ValueError(f"{where}.sha256 must be 64 hexadecimal digits")
    if not is_name(entry["name"]):
        raise ValueError(f"{where}.name must be 1 to {_MAX_NAME_LENGTH} printable characters")
    for field in ("created", "expires"):
        if entry[field] is not None:
            parse_time(entry[field], f"{where}.{field}")
    return KeyRecord(**entry | asdict(_parse_limits(entry, where)))


def _parse_limits(entry: dict[str, Any], where: str) -> Limits:
    tier, models = entry.get("tier"), entry.get("models")
    if tier is not None and not (isinstance(tier, str) and is_name(tier)):
        raise ValueError(f"{where}.tier must be the name of a tier")
    if models is not None and not (
        isinstance(models, list) and models and all(isinstance(one, str) for one in models)
    ):
        raise ValueError(f"{where}.models must be a list of at least one model's name")
    numbers = {}
    for field in ("requests_per_minute", "tokens_per_minute"):
        value = entry.get(field)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and value >= 1):
            raise ValueError(f"{where}.{field} must be a whole number of 1 or more")
        numbers[field] = value
    return Limits(tier, None if models is None else tuple(models), **numbers)


def parse_time(text: object, where: str) -> datetime:
    """A time with its zone, in UTC. Raises ValueError naming `where`."""
    parsed = None
    if isinstance(text, str):
        try:
            parsed = datetime.fromisoformat(text)
        except ValueError:
            parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise ValueError(f"{where} must be a time such as 2026-01-31T09:00:00Z, with its zone")
    return parsed.astimezone(UTC)


def is_name(text: str) -> bool:
    """Whether this can be the name of a key: one printable line in any language."""
    return 0 < len(text) <= _MAX_NAME_LENGTH and text.isprintable() and text == text.strip()


def _check_name(path: Path, name: str) -> None:
    if not is_name(name):
        raise KeysError(
            f"cannot create a key named {name!r} in {path}",
            f"a name is 1 to {_MAX_NAME_LENGTH} printable characters without space at its ends.",
            "Name it after who uses it, for example: chat-backend",
        )


def _check_limits(path: Path, name: str, limits: Limits) -> None:
    try:
        _parse_limits(to_entry(KeyRecord("", name, "", "", None, **asdict(limits))), "the key")
    except ValueError as error:
        raise KeysError(
            f"cannot create the key {name!r} in {path}",
            f"{error}.",
            "Tiers are in the settings, under gateway; models are those of GET /v1/models.",
        ) from error


def _write_plaintext(out: Path, created: NewKey) -> None:
    try:
        create_file(out, f"{created.plaintext}\n".encode(), mode=0o600)
    except OSError as error:
        raise KeysError(
            f"cannot write the new key to {out}",
            f"{error.strerror}; no key was created.",
            "Give --out a path that does not exist yet, in a directory that does.",
        ) from error


def _write(path: Path, content: KeyFile) -> None:
    document = to_document(content.serial, content.keys)
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    write_file(path, text.encode(), mode=0o644)
