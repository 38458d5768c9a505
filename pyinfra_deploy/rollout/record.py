"""What is kept of a run: .fleet/rollouts/INVENTORY/ID.json, and a page of it beside it.

The record is written again after each thing that happens, so a run that was killed leaves what it
had come to. Everything in it is masked. It is not what a rollout goes on from: hosts are.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.keys import durable
from pyinfra_deploy.rollout import page
from pyinfra_deploy.rollout.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pyinfra_deploy.rollout.outcome import Outcome
    from pyinfra_deploy.rollout.policy import Options

SCHEMA = 1
# A page is for a person: the whole log of a run of a hundred hosts is not.
MOST_LOG_LINES = 2000


def directory_of(root: Path, inventory: str) -> Path:
    return root / ".fleet" / "rollouts" / inventory


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Record:
    """document: the JSON document, see docs/rollout.md."""

    directory: Path
    document: dict[str, Any]
    _log: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.directory / f"{self.document['id']}.json"

    @property
    def page_path(self) -> Path:
        return self.directory / f"{self.document['id']}.html"

    def log(self, line: str) -> None:
        self._log.append(line)
        del self._log[:-MOST_LOG_LINES]

    def event(self, what: str, **more: Any) -> None:
        """One line of the timeline, and everything so far onto the disk."""
        self.document["events"].append({"when": now(), "what": what, **more})
        self.write()

    def outcomes(self, found: Iterable[Outcome]) -> None:
        for one in found:
            document = asdict(one) | {"kind": one.kind.value, "when": now()}
            self.document["hosts"].setdefault(one.host, {})["outcome"] = document

    def end(self, what: str, why: str, code: int) -> None:
        self.document["end"] = {"what": what, "why": why, "code": code, "when": now()}
        self.write()

    def write(self) -> None:
        """Both files, each whole."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        document = masked({**self.document, "log": self._log})
        text = json.dumps(document, indent=1) + "\n"
        durable.write_file(self.path, text.encode(), mode=0o600)
        durable.write_file(self.page_path, page.render(document).encode(), mode=0o600)


def begin(
    root: Path,
    inventory: str,
    identity: str,
    *,
    kind: str,
    owner: str,
    options: Options | None,
    groups: Sequence[Sequence[str]],
    hosts: Mapping[str, Mapping[str, Any]],
) -> Record:
    """hosts: {host: {from, to, changes, differences, findings}}, each as texts. Of a run that is
    gone on with, what is there of it stays. options: None for what is no rollout."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "id": identity,
        "kind": kind,
        "inventory": inventory,
        "owner": owner,
        "began": now(),
        "options": {**asdict(options), "batch": str(options.batch)} if options else {},
        "groups": [list(group) for group in groups],
        "hosts": {host: dict(what) for host, what in hosts.items()},
        "events": [],
        "end": None,
    }
    record = Record(directory_of(root, inventory), document)
    before = _read(record.path)
    if before is not None:
        _go_on(record, before)
    record.write()
    return record


def _go_on(record: Record, before: Mapping[str, Any]) -> None:
    document = record.document
    document |= {"began": before["began"], "events": list(before["events"])}
    document["events"].append({"when": now(), "what": f"gone on with by {document['owner']}"})
    for name, host in before["hosts"].items():
        document["hosts"][name] = {**host, **document["hosts"].get(name, {})}
        document["hosts"][name]["from"] = host.get("from")
    for line in before.get("log") or ():
        record.log(line)


def _read(path: Path) -> dict[str, Any] | None:
    """None for what is no record: absent, or cut."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else None


def newest(root: Path, inventory: str, identity: str = "") -> dict[str, Any] | None:
    """The newest record of an inventory, or the one whose ID begins with `identity`."""
    found = sorted(
        directory_of(root, inventory).glob(f"{identity}*.json"),
        key=lambda path: (path.stat().st_mtime_ns, path.name),
    )
    for path in reversed(found):
        document = _read(path)
        if document is not None:
            return document
    return None


def page_of(root: Path, document: Mapping[str, Any]) -> Path:
    return directory_of(root, str(document["inventory"])) / f"{document['id']}.html"
