"""The few kilobytes that tell what a model is: its config.json, index and listing, from the hub or
from a directory. Read before any weight is, and kept, so that planning again needs no network."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.facts.model_documents import ModelDocuments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.settings.schema import Model

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
LISTING = "listing.json"
TIMEOUT_SECONDS = 15.0
# config.json is kilobytes; an index of 1000 shards with 200,000 tensors is 20 MB.
MOST_BYTES = 64 * 1024 * 1024


def read_directory(directory: Path) -> ModelDocuments:
    """From a directory with config.json and, where they are there, the index and listing.json
    ({"files": [{"path", "size"}]}, as the hub's records on hosts) or the model's files themselves.
    """
    if not directory.is_dir():
        return ModelDocuments(problem=f"{directory} is no directory", source=str(directory))
    config, problem = _document(directory / CONFIG)
    index, _ = _document(directory / INDEX)
    listing, _ = _document(directory / LISTING)
    sizes = _sizes(listing) or {
        path.name: path.stat().st_size for path in directory.glob("*.safetensors")
    }
    return ModelDocuments(config, index, sizes or None, problem, str(directory))


def _document(path: Path) -> tuple[Any, str]:
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        return None, f"{path}: {error.strerror}"
    try:
        return json.loads(text), ""
    except (ValueError, RecursionError) as error:
        return text, f"{path} is not JSON: {error}"


def _sizes(listing: Any) -> dict[str, int] | None:
    files = listing.get("files") if isinstance(listing, dict) else None
    if not isinstance(files, list):
        return None
    return {
        str(entry["path"]): entry["size"]
        for entry in files
        if isinstance(entry, dict) and "path" in entry and isinstance(entry.get("size"), int)
    }


def fetch(model: Model, cache: Path) -> ModelDocuments:
    """From the hub, or from `cache` when it was fetched before: the same model at the same
    revision of the same hub. A branch that has moved since shows at the pull, which verifies."""
    source = f"{model.endpoint}/{model.id}@{model.revision}"
    kept = cache / f"{hashlib.sha256(source.encode()).hexdigest()[:24]}.json"
    if kept.exists():
        found, _ = _document(kept)
        if isinstance(found, dict):
            return ModelDocuments(found["config"], found["index"], found["listing"], "", source)
    token = model.token.reveal() if model.token is not None else None
    try:
        documents = _ask(model, token)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return ModelDocuments(problem=f"{source}: {_reason(error)}", source=source)
    _keep(kept, documents)
    return ModelDocuments(**documents, source=source)


def _ask(model: Model, token: str | None) -> dict[str, Any]:
    base = f"{model.endpoint}/api/v1/models/{urllib.parse.quote(model.id)}/repo"
    revision = urllib.parse.quote(model.revision, safe="")
    listing = json.loads(_get(f"{base}/files?Revision={revision}&Recursive=True", token))
    files = listing["Data"]["Files"]
    sizes = {str(file["Path"]): int(file["Size"]) for file in files if file.get("Type") != "tree"}
    documents: dict[str, Any] = {"config": None, "index": None, "listing": sizes}
    for key, name in (("config", CONFIG), ("index", INDEX)):
        if name in sizes:
            text = _get(f"{base}?Revision={revision}&FilePath={name}", token)
            documents[key] = json.loads(text)
    return documents


def _get(url: str, token: str | None) -> bytes:
    request = urllib.request.Request(url)  # noqa: S310 - settings allow http and https alone
    if token is not None:
        # Not a plain header: urllib sends those on to wherever a redirect leads.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
        content: bytes = answer.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{url} is larger than {MOST_BYTES} bytes")
    return content


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the hub answered {error.code}"
    if isinstance(error, urllib.error.URLError):
        return f"the hub cannot be reached ({error.reason})"
    return f"the hub's answer cannot be used ({type(error).__name__}: {error})"


def _keep(path: Path, documents: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(documents, stream)
    Path(name).replace(path)
