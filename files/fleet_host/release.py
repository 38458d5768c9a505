"""Releases: what an engine runs, staged beside the running one and never changed afterwards.

engines/ENGINE/releases/ID/{release.json, config.yaml, env, runtime -> , model -> }. The control
side gives the ID, a digest of the content, the same on every host. GPU UUIDs and the like are this
host's, and lie beside it (binding.py).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from . import durable, engine, events, fields, job_record, layout, snapshot
from .errors import HostError

CONTENT = ("release.json", "config.yaml", "env")


def stage(request: dict[str, Any]) -> dict[str, Any]:
    """`release stage` {engine, id, release: {runtime, model, ...}, config_yaml, env}
    -> {changed, path}.

    release.runtime and .model are absolute paths of a complete environment and a published model
    below llm_root. env is the text of a systemd EnvironmentFile. The same again changes nothing.
    """
    name, identity = engine.name_of(request), engine.name_of(request, "id")
    release = request.get("release")
    release = dict(release) if isinstance(release, dict) else {}
    runtime = _inside(fields.text(release, "runtime"), "runtimes", 1)
    model = _inside(fields.text(release, "model"), "models", 2)
    content = {
        "release.json": json.dumps({**release, "id": identity}, indent=1, sort_keys=True) + "\n",
        "config.yaml": fields.text(request, "config_yaml"),
        "env": fields.text(request, "env"),
    }
    refuse_incomplete(name, identity, runtime, model)
    job_record.published_after_all(model)
    directory = engine.release_directory(name, identity)
    if directory.is_dir():
        _refuse_different(directory, content, runtime, model)
        return {"changed": False, "path": str(directory)}
    durable.make_directories(directory.parent)
    staging = directory.with_name(f".{identity}.staging")
    durable.remove_tree(staging)
    try:
        with durable.writing(directory, sum(len(text.encode()) for text in content.values())):
            _fill(staging, content, runtime, model)
            durable.publish_directory(staging, directory)
    except BaseException:
        # Not durably: what stands in the way may stand in the way of that, too.
        shutil.rmtree(staging, ignore_errors=True)
        raise
    events.record("release staged", engine=name, release=identity, **model_in(name, identity))
    return {"changed": True, "path": str(directory)}


def _fill(staging: Path, content: dict[str, str], runtime: Path, model: Path) -> None:
    staging.mkdir()
    staging.chmod(0o755)
    for file, text in content.items():
        path = staging / file
        path.write_text(text)
        path.chmod(0o644)
    (staging / "runtime").symlink_to(runtime)
    (staging / "model").symlink_to(model)


def model_in(name: str, identity: str) -> dict[str, Any]:
    """{model: OWNER--NAME/REVISION, model_digest} of a staged release, for the event log."""
    document = durable.read_json(engine.release_directory(name, identity) / "release.json") or {}
    path = Path(str(document.get("model", "")))
    return {"model": "/".join(path.parts[-2:]), "model_digest": document.get("model_digest")}


def _inside(path: str, parent: str, depth: int) -> Path:
    base = layout.llm_root() / parent
    found = Path(path)
    if (
        not found.is_relative_to(base)
        or ".." in found.parts
        or (len(found.relative_to(base).parts) != depth)
    ):
        raise HostError(
            f"{path} is not a place for what a release runs",
            f"it must be {depth} level(s) below {base}.",
            "This comes from the control side; is llm_root the same there and on this host?",
        )
    return found


def refuse_incomplete(name: str, identity: str, runtime: Path, model: Path) -> None:
    """HostError unless the runtime was built to its end and every file of the model is there."""
    what = f"release {identity} of engine {name} cannot run here"
    if durable.read_object(runtime / ".fleet-complete.json") is None:
        raise HostError(
            what,
            f"the runtime {runtime} is not there in full.",
            "Run the deploy; it builds the runtime first.",
        )
    seen = snapshot.model_state(str(model))
    if not model.is_dir() or not seen["complete"]:
        raise HostError(
            what,
            f"the model {model} is not there in full.",
            "Run the deploy; it pulls the model first, and only what is missing.",
            seen["problems"],
        )


def _refuse_different(directory: Path, content: dict[str, str], runtime: Path, model: Path) -> None:
    different = [file for file, text in content.items() if _text(directory / file) != text]
    for link, target in (("runtime", runtime), ("model", model)):
        path = directory / link
        if not path.is_symlink() or path.readlink() != target:
            different.append(link)
    if different:
        raise HostError(
            f"{directory} exists with other content",
            f"{', '.join(different)} differ(s), and a release never changes once it is staged: "
            "an engine may run it, and a rollback must find what ran.",
            "Look who changed it ('events tail'). If nothing runs it, move it away and run again.",
        )


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
