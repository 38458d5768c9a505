"""The pull job's spec, checked."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import client, fields, hub, proxies, staging
from .errors import HostError, SpecError
from .listing import Listing, locked_listing

if TYPE_CHECKING:
    from .staging import Places

KEYS = {"model_id", "revision", "endpoint", "hub", "target", "client", "files_at_once"}
KEYS |= {"file_timeout_seconds", "stall_timeout_seconds", "token_file", "accept"}
# provenance: for the event log alone (job_record.py).
KEYS |= {"proxy", "no_proxy", "provenance"}
# Of a locked model: its directory here, what its files must be, and the commit that has them.
KEYS |= {"directory", "files", "commit"}
# Whether the other hosts of the inventory are asked before the hub (sharing.py knows them).
KEYS |= {"fan_out"}
MODEL_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
REVISION = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
# What the unit's SetCredential= puts there when the host has no token file.
NO_TOKEN = "unset"  # noqa: S105 - a word, no password
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Wanted:
    """The spec of a pull, checked. locked: what the files must be, whatever the hub lists; None:
    that is what the hub lists now. asked_revision: what the hub is asked for. accept: what else
    than safetensors it may bring, of listing.ACCEPTABLE."""

    model_id: str
    revision: str
    asked_revision: str
    locked: Listing | None
    target: Path
    source: hub.Hub
    client: client.ClientSettings
    fan_out: bool = False
    accept: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.model_id} at {self.revision}"

    def origin(self, commit: str | None) -> dict[str, Any]:
        return {
            "model_id": self.model_id,
            "hub": "modelscope",
            "endpoint": self.source.endpoint,
            "revision": self.revision,
            "commit": commit,
        }


def read_spec(spec: dict[str, Any]) -> tuple[Wanted, Places]:
    """The checked spec and the model's places. SpecError, HostError for an unusable token."""
    fields.refuse_unknown(spec, KEYS, "pull")
    model_id, revision = fields.text(spec, "model_id"), fields.text(spec, "revision", "master")
    if not MODEL_ID.fullmatch(model_id) or "--" in model_id:
        raise SpecError(
            f"{model_id!r} is not a model's name",
            "it must be OWNER/NAME of letters, digits, '.', '_' and '-', without '--'.",
            "Correct model.id.",
        )
    if not REVISION.fullmatch(revision) or revision.endswith(".json"):
        raise SpecError(
            f"{revision!r} cannot be pulled as a revision",
            "it becomes a directory: letters, digits, '.', '_' and '-', not ending in .json.",
            "Use a tag or the commit instead.",
        )
    if fields.text(spec, "hub", "modelscope") != "modelscope":
        raise SpecError(f"hub {spec['hub']!r} is not known", "only modelscope is.", "Correct it.")
    endpoint = fields.text(spec, "endpoint").rstrip("/")
    hub.check_endpoint(endpoint)
    target = Path(fields.text(spec, "target"))
    if not target.is_absolute():
        raise SpecError(f"target {target} is not absolute", "it must be.", "Correct it.")
    locked, commit = read_lock(spec)
    directory = fields.text(spec, "directory", revision)
    if not REVISION.fullmatch(directory) or directory.endswith(".json"):
        raise SpecError(
            f"{directory!r} cannot be a model's directory",
            "it must be letters, digits, '.', '_' and '-', not ending in .json.",
            "Correct it.",
        )
    place = staging.places(target, model_id, directory)
    token = read_token(fields.optional_text(spec, "token_file"))
    proxy = proxies.read(spec)
    settings = client.ClientSettings(
        program=Path(fields.text(spec, "client")),
        endpoint=endpoint,
        token=token,
        files_at_once=max(1, fields.whole(spec, "files_at_once", 4)),
        file_timeout_seconds=max(1, int(fields.seconds(spec, "file_timeout_seconds", 86400))),
        stall_timeout_seconds=fields.seconds(spec, "stall_timeout_seconds", 900),
        home=place.staging / "home",
        proxy=proxy,
    )
    source, accept = hub.Hub(endpoint, token, proxy), frozenset(fields.texts(spec, "accept"))
    asked = commit or revision
    fan_out = spec.get("fan_out") is True and locked is not None
    wanted = Wanted(model_id, revision, asked, locked, target, source, settings, fan_out, accept)
    return wanted, place


def read_lock(spec: dict[str, Any]) -> tuple[Listing | None, str | None]:
    """(what the files must be, the commit to ask for); both None for a pull without a lock."""
    commit = fields.optional_text(spec, "commit")
    if commit is not None and not COMMIT.fullmatch(commit):
        raise SpecError(f"{commit!r} is no commit", "it must be 40 hex digits.", "Correct it.")
    files = spec.get("files")
    if files is None:
        return None, commit
    return locked_listing(files, commit), commit


def read_token(token_file: str | None) -> str | None:
    """The hub's token. A name without "/" is a credential of the unit (systemd LoadCredential=)."""
    if token_file is None:
        return None
    path = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent"), token_file)
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise HostError(
            "the hub's token cannot be read",
            f"{path}: {error.strerror}.",
            "Deploy again with model.token set, or remove it from the settings.",
        ) from error
    if token in ("", NO_TOKEN) or not token.isprintable():
        raise HostError(
            "the hub's token cannot be used",
            f"{path} holds none, or more than one line.",
            "Deploy again with model.token set, or remove it from the settings.",
        )
    return token
