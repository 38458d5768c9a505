"""What a hub can do wrong, and what a pull by the real client makes of each."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lab.hub.faults import LISTING, Fault
from lab.hub.places import models_directory
from lab.hub.store import publish, revision
from tests.fakes.lab_hub import make_directory
from tests.fakes.model_hub import FIRST, SECOND, tiny_model

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "lab/tiny-faulty"
EXTRA = "model-00003-of-00003.safetensors"
TOKEN = "only-for-the-labs-hub"


@dataclass(frozen=True)
class Case:
    """One fault. words: how the pull's refusal has to read; empty: it ends with the whole model.
    locked: by the files as they are. commit: the lock knows the hub's commit. spec: of the job."""

    name: str
    faults: tuple[Fault, ...]
    words: tuple[str, ...] = ()
    locked: bool = False
    commit: bool = True
    spec: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}-{'locked' if self.locked else 'listed'}"


def on(kind: str, path: str = "*", **more: Any) -> tuple[Fault, ...]:
    return (Fault(kind, path=path, model=MODEL, **more),)


IN_SECONDS = {"stall_timeout_seconds": 5}
NO_TOKEN = ("401", "model.token")
MOVES = on("moves", "master", value="@other")
NOTHING = on("drop", SECOND, value=0)
CASES = (
    Case("wrong sha256", on("wrong_sha256", SECOND), ("not as the hub lists them", SECOND)),
    Case("wrong sha256", on("wrong_sha256", SECOND), ("not as the hub", SECOND), locked=True),
    Case("wrong size", on("wrong_size", SECOND), ("not as the hub lists", SECOND), locked=True),
    Case("no sha256", on("no_sha256", SECOND), (f"{SECOND} has no Sha256",)),
    # Without a hash the client takes what comes; it is compared with the lock all the same.
    Case("no sha256", on("no_sha256", SECOND), locked=True),
    Case("omitted shard", on("omit", SECOND), ("is not complete on the hub", SECOND)),
    Case("omitted shard", on("omit", SECOND), (SECOND,), locked=True),
    Case("cut listing", on("many", value=3000), ("cuts listings at 3000 entries",)),
    Case("cut listing", on("many", value=3000), locked=True),
    Case("no revision", on("no_revision", "master"), ("404", "model.revision")),
    Case("no revision", on("no_revision", "master"), locked=True),
    Case("no revision", on("no_revision", "*"), ("404", "model.revision"), locked=True),
    Case("moves", MOVES, ("changed at the hub while it was pulled", SECOND)),
    Case("moves", MOVES, locked=True),
    Case("moves", MOVES, ("is not what was locked", SECOND), locked=True, commit=False),
    Case("no token", on("token", value=TOKEN), NO_TOKEN),
    Case("no token", on("token", value=TOKEN), NO_TOKEN, locked=True),
    Case("redirect", on("redirect", "*.safetensors")),
    Case("redirect", on("redirect", "*.safetensors"), locked=True),
    Case("stall", on("stall", SECOND), ("stands still", SECOND), locked=True, spec=IN_SECONDS),
    Case("error, three times", on("error", SECOND, value=500, times=3)),
    Case("forbidden file", on("error", SECOND, value=403), ("403", "model.token"), locked=True),
    Case("absent file", on("error", SECOND, value=404), ("404", SECOND), locked=True),
    Case("absent file", on("error", SECOND, value=404), ("404", SECOND)),
    # The client asks again; what stays wrong, or never comes, ends the pull.
    Case("corrupt once", on("corrupt", SECOND, times=1), locked=True),
    Case("corrupt", on("corrupt", SECOND), ("not as the hub lists them", SECOND), locked=True),
    Case("drop once", on("drop", SECOND, times=1), locked=True),
    Case("drop", NOTHING, ("byte", SECOND), locked=True, spec=IN_SECONDS),
    Case("outage", on("error", LISTING, value=503, times=5), locked=True),
    # Beside the model it is no part of it; its header is none, which no hash would tell.
    Case("extra shard", on("extra", value=EXTRA), (EXTRA,)),
    Case("extra shard", on("extra", value=EXTRA), locked=True),
    Case("pickle", on("extra", value="pytorch_model.bin"), ("do not accept", "accept: [pickle]")),
    Case("code", on("extra", value="modeling.py"), ("do not accept", "accept: [code]")),
)


def publish_model(hub: Path) -> str:
    """The commit of another content of the model, which no branch names; master is tiny_model()."""
    models = models_directory(hub)
    files = tiny_model()
    others = {**files, SECOND: files[SECOND][:-1] + b"\x07"}
    commits = []
    for content in (others, files):
        made = hub / "making-faulty"
        shutil.rmtree(made, ignore_errors=True)
        commits.append(publish(models, make_directory(made, content), MODEL))
        shutil.rmtree(made, ignore_errors=True)
    return commits[0]


def remove_model(hub: Path) -> None:
    shutil.rmtree(models_directory(hub) / MODEL, ignore_errors=True)


def faults_of(case: Case, other_commit: str) -> list[Fault]:
    return [
        Fault(one.kind, one.path, one.model, one.times, other_commit)
        if one.value == "@other"
        else one
        for one in case.faults
    ]


def spec_of(case: Case, hub: Path, **places: Any) -> dict[str, Any]:
    """The pull job's spec. places: endpoint, target, client, directory."""
    found = revision(models_directory(hub), MODEL, "master")
    locked: dict[str, Any] = {}
    if case.locked:
        files = [
            {"path": one.path, "size": one.size_bytes, "sha256": one.sha256} for one in found.files
        ]
        locked = {"files": files, "commit": found.commit if case.commit else None}
    return {
        "model_id": MODEL,
        "revision": "master",
        "hub": "modelscope",
        "files_at_once": 4,
        "file_timeout_seconds": 60,
        "stall_timeout_seconds": 60,
        "token_file": None,
        "accept": [],
        **locked,
        **places,
        **case.spec,
    }


__all__ = ["CASES", "FIRST", "MODEL", "SECOND", "TOKEN", "Case"]
