"""Is a model's tokenizer fit? Examined by the runtime's own transformers, in the engine's sandbox.

Part of `proof run` (proof_script.py), by a request of its own. It loads no weights and needs no
GPU. Who asks, and what follows, is fitness.py.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import (
    fitness_files,
    fitness_found,
    fitness_template,
    fitness_text,
    fitness_vocabulary,
    proof_model,
)
from .errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable

LOAD = "AutoTokenizer"


def examine(asked: dict[str, Any], step: Callable[[str], None], seen: dict[str, Any]) -> None:
    """asked: {model, runtime, trust_remote_code, chat_template, tools}. step is told what begins;
    seen gets {transformers, tokenizer, tokens, warnings}. HostError when the model is not fit."""
    model = Path(asked["model"])
    found = fitness_found.Found()
    step("tokenizer's files")
    documents = fitness_files.read_documents(model, found)
    fitness_files.check_files(model, documents, found)
    _raise(found)
    step("import transformers")
    transformers = _transformers(asked)
    seen["transformers"] = str(getattr(transformers, "__version__", "?"))
    step("load the tokenizer")
    tokenizer = _tokenizer(transformers, model, trusted=asked.get("trust_remote_code") is True)
    seen["tokenizer"] = type(tokenizer).__name__
    seen["tokens"] = len(tokenizer.get_vocab())
    step("vocabulary")
    config = documents[fitness_files.CONFIG]
    rows = fitness_files.embedding_rows(model)
    limit = fitness_vocabulary.check_size(tokenizer, config, rows, found)
    fitness_vocabulary.check_special_tokens(tokenizer, documents, limit, found)
    if backend := _backend(tokenizer):
        fitness_vocabulary.check_merges(backend, found)
    step("chat template")
    generates = fitness_files.generates_text(config)
    if generates:
        template = _template(asked.get("chat_template"), tokenizer, documents)
        fitness_template.check_template(
            tokenizer, template, found, tools=asked.get("tools") is True
        )
    step("texts")
    fitness_text.check_texts(tokenizer, found, generates=generates)
    seen["warnings"] = found.warnings
    _raise(found)


def _template(given: str | None, tokenizer: Any, documents: dict[str, Any]) -> str | None:
    """The template that vLLM would take in place of the tokenizer's own; None: that one."""
    if given:
        try:
            return Path(given).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return given  # the template itself
    if getattr(tokenizer, "chat_template", None):
        return None
    # Older multimodal models have it for their processor alone.
    return (documents.get("chat_template.json") or {}).get("chat_template")


def _raise(found: fitness_found.Found) -> None:
    error = found.error()
    if error is not None:
        raise error


def _transformers(asked: dict[str, Any]) -> Any:
    try:
        module = importlib.import_module("transformers")
        getattr(module, LOAD)
    except Exception as error:
        raise HostError(
            "the runtime cannot import transformers",
            f"{type(error).__name__}: {error}.",
            f"The lock does not hold it or mixes builds, or {asked['runtime']} is damaged; vLLM "
            f"itself needs it. {fitness_found.OFF}",
            proof_model.last_lines(error),
        ) from error
    return module


def _tokenizer(transformers: Any, model: Path, *, trusted: bool) -> Any:
    try:
        # Without local_files_only a file that is missing would be looked for at a hub.
        return getattr(transformers, LOAD).from_pretrained(
            str(model), trust_remote_code=trusted, local_files_only=True
        )
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        text = (str(error).splitlines() or ["no words"])[0].rstrip(".")
        needs_code = "trust_remote_code" in str(error)
        raise HostError(
            "the model is not fit to be served: its tokenizer cannot be loaded",
            f"{type(error).__name__}: {text}.",
            "It brings code of its own: read it, set engine.args trust-remote-code: true and "
            "model.accept: [code]."
            if needs_code
            else "Its files are cut, or do not belong together, or need a newer vLLM: take them "
            f"from one revision. {fitness_found.OFF}",
            proof_model.last_lines(error),
        ) from error


def _backend(tokenizer: Any) -> dict[str, Any] | None:
    """What the tokenizers library works by, as tokenizer.json has it; None for Python's own."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    document = json.loads(backend.to_str())
    return document if isinstance(document, dict) else None
