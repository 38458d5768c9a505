"""inventories/NAME/audit.json: the last head that was seen of each host's event log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.keys import durable
from pyinfra_deploy.settings.problems import Problem, SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = 1
HEADS = "audit.json"


def read_heads(path: Path) -> dict[str, dict[str, Any]]:
    """{host: {events, head, when}}; empty before the first time. Raises SettingsError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise _unusable(path, f"is not JSON ({error}).") from error
    hosts = document.get("hosts") if isinstance(document, dict) else None
    if not isinstance(hosts, dict) or document.get("schema") != SCHEMA:
        raise _unusable(path, f"has not the form of schema {SCHEMA}.")
    return hosts


def _unusable(path: Path, message: str) -> SettingsError:
    fix = "restore it from the repository: it proves what hosts had logged before."
    return SettingsError([Problem(str(path), None, "", None, None, message, fix)])


def write_heads(path: Path, heads: Mapping[str, Any]) -> None:
    document = {"schema": SCHEMA, "hosts": dict(sorted(heads.items()))}
    text = json.dumps(document, indent=1) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        durable.write_file(path, text.encode(), mode=0o644)
