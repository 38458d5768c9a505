"""Fitness before live: the tokenizer is examined once for each model and runtime.

llm-proof@ENGINE.service runs fitness_script.py by the runtime's own Python and transformers, as the
engine's user, without a network; no weights are loaded and no GPU is touched, so an engine that
runs is not in its way. What it found is kept in state/fitness/MODEL--RUNTIME.json with all that it
depends on: the model's content, the runtime's, and what settings say of code and chat template.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import durable, engine, events, fields, layout, proof, proof_script, release
from .errors import HostError

if TYPE_CHECKING:
    from .status import Progress

# Raised when what is examined changes, so that models found fit by less are examined again.
VERSION = 1


@dataclass(frozen=True)
class Wanted:
    """How to examine. chat_template: as engine.args gives it, a file or the template itself."""

    trust_remote_code: bool
    chat_template: str | None
    tools: bool
    timeout_seconds: float


def read_wanted(spec: dict[str, Any]) -> Wanted | None:
    """The spec's fitness; None when none is wanted (model.fitness: off)."""
    asked = spec.get("fitness")
    if not isinstance(asked, dict):
        return None
    return Wanted(
        trust_remote_code=asked.get("trust_remote_code") is True,
        chat_template=fields.optional_text(asked, "chat_template"),
        tools=asked.get("tools") is True,
        timeout_seconds=fields.seconds(asked, "timeout_seconds"),
    )


def record_path(name: str, identity: str) -> Path:
    """Of a staged release's model and runtime."""
    document = _document(name, identity)
    model, runtime = (Path(str(document.get(key))) for key in ("model", "runtime"))
    file = f"{model.parent.name}--{model.name}--{runtime.name}.json"
    return layout.llm_root() / "state/fitness" / file


def depends_on(name: str, identity: str, wanted: Wanted) -> dict[str, Any]:
    """All that a verdict depends on."""
    document = _document(name, identity)
    return {
        "version": VERSION,
        "model_digest": document.get("model_digest"),
        "runtime_digest": document.get("runtime_digest"),
        "trust_remote_code": wanted.trust_remote_code,
        "chat_template": _template_digest(wanted.chat_template),
        "tools": wanted.tools,
    }


def _document(name: str, identity: str) -> dict[str, Any]:
    path = engine.release_directory(name, identity) / "release.json"
    return durable.read_object(path) or {}


def _template_digest(given: str | None) -> str | None:
    """Of the file's content where it names one: what counts is what is rendered."""
    if given is None:
        return None
    try:
        content = Path(given).read_bytes()
    except (OSError, ValueError):
        content = given.encode()
    return hashlib.sha256(content).hexdigest()


def known(name: str, identity: str, wanted: Wanted) -> bool:
    """Whether this model was found fit for this runtime, under these settings."""
    record = durable.read_json(record_path(name, identity))
    return (
        isinstance(record, dict)
        and record.get("state") == "passed"
        and record.get("depends_on") == depends_on(name, identity, wanted)
    )


def warnings(name: str, identity: str) -> list[str]:
    """What was doubtful of a release's tokenizer when it was examined."""
    record = durable.read_object(record_path(name, identity)) or {}
    found = (record.get("seen") or {}).get("warnings") or []
    return [f"tokenizer: {text}" for text in found]


def require(
    name: str, identity: str, wanted: Wanted, progress: Progress, poll_seconds: float = 1.0
) -> None:
    """Examine the model of a staged release unless it is known to be fit, and keep the verdict.
    HostError when it is not fit."""
    if known(name, identity, wanted):
        return
    depends = depends_on(name, identity, wanted)
    what = release.model_in(name, identity)["model"]
    progress.phase("examining the tokenizer", unit="s", message=f"of {what}")
    request = {
        **proof.base_request(name, identity),
        "check": proof_script.FITNESS,
        "trust_remote_code": wanted.trust_remote_code,
        "chat_template": wanted.chat_template,
        "tools": wanted.tools,
    }
    began = time.monotonic()
    verdict = proof.ask(name, identity, request, wanted.timeout_seconds, progress, poll_seconds)
    seconds = round(time.monotonic() - began, 1)
    seen = verdict.get("seen", {})
    doubtful = [str(text) for text in seen.get("warnings", [])]
    _keep(
        record_path(name, identity),
        {
            "state": verdict["state"],
            "depends_on": depends,
            "seen": seen,
            "error": verdict.get("error"),
            "when": events.utc_now(),
        },
    )
    digest = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:16]
    events.record(
        f"fitness {verdict['state']}", engine=name, release=identity, depends_on=digest,
        warnings=len(doubtful), seconds=seconds, **release.model_in(name, identity),
    )  # fmt: skip
    for text in doubtful:
        progress.log(f"tokenizer: {text}")
    if verdict["state"] != "passed":
        error = verdict["error"]
        raise HostError(error["what"], error["why"], error["fix"], error["detail"])
    progress.log(
        f"the tokenizer is fit: {seen.get('tokens')} tokens, transformers "
        f"{seen.get('transformers')}, {len(doubtful)} warnings, {seconds:g} s"
    )


def _keep(path: Path, record: dict[str, Any]) -> None:
    """Write the record; those of models and runtimes that are gone go."""
    durable.make_directories(path.parent)
    root = layout.llm_root()
    models = {f"{one.parent.name}--{one.name}" for one in root.glob("models/*/*") if one.is_dir()}
    runtimes = {one.name for one in root.glob("runtimes/*")}
    kept = {f"{model}--{runtime}.json" for model in models for runtime in runtimes}
    for other in path.parent.glob("*.json"):
        if other.name not in kept and other != path:
            durable.remove_file(other)
    durable.write_json(path, record)
