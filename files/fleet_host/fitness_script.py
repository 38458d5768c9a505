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
# Of mistral-common, which has prompts in code, and other attributes than transformers' tokenizers.
MISTRAL = "MistralCommon"


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
    trusted = asked.get("trust_remote_code") is True
    own_code = not trusted and fitness_files.brings_code(documents)
    tokenizer = _tokenizer(transformers, model, trusted=trusted, own_code=own_code)
    seen["tokenizer"] = type(tokenizer).__name__
    try:
        _examine(tokenizer, model, documents, asked, found, step)
        seen["tokens"] = len(tokenizer.get_vocab())
    except Exception as error:
        raise HostError(
            f"the model's tokenizer ({seen['tokenizer']}) cannot be examined",
            f"it does not behave as transformers' do: {type(error).__name__}: {error}.",
            f"Report it, with the lines below. {fitness_found.OFF}",
            proof_model.last_lines(error),
        ) from error
    seen["warnings"] = found.warnings
    _raise(found)


def _examine(
    tokenizer: Any,
    model: Path,
    documents: dict[str, Any],
    asked: dict[str, Any],
    found: fitness_found.Found,
    step: Callable[[str], None],
) -> None:
    config = documents[fitness_files.CONFIG]
    mistral = type(tokenizer).__name__.startswith(MISTRAL)
    if mistral:
        found.warn("it is Mistral's own tokenizer: its texts were examined, and no chat template")
    else:
        step("vocabulary")
        rows = fitness_files.embedding_rows(model)
        limit = fitness_vocabulary.check_size(tokenizer, config, rows, found)
        fitness_vocabulary.check_special_tokens(tokenizer, documents, limit, found)
        if backend := _backend(tokenizer):
            fitness_vocabulary.check_merges(backend, found)
    if not fitness_files.generates_text(config):
        return
    if not mistral:
        step("chat template")
        template = _template(asked.get("chat_template"), tokenizer, documents)
        tools = asked.get("tools") is True
        fitness_template.check_template(tokenizer, template, found, tools=tools)
    step("texts")
    fitness_text.check_texts(tokenizer, found)


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


def _tokenizer(transformers: Any, model: Path, *, trusted: bool, own_code: bool) -> Any:
    """own_code: it has code of its own, which is not to be run."""
    try:
        # Without local_files_only a file that is missing would be looked for at a hub.
        return getattr(transformers, LOAD).from_pretrained(
            str(model), trust_remote_code=trusted, local_files_only=True
        )
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        cause = _of_file(model / fitness_files.TOKENIZER) or error
        text = next((line for line in str(cause).splitlines() if line.strip()), "no words")
        raise HostError(
            "the model is not fit to be served: its tokenizer cannot be loaded",
            f"{type(cause).__name__}: {text.strip().rstrip('.')}.",
            _loading_fix(cause, own_code=own_code),
            proof_model.last_lines(error),
        ) from error


def _of_file(path: Path) -> Exception | None:
    """What the tokenizers library has against a tokenizer.json: transformers tries other ways when
    it cannot be read, and then tells only why those failed."""
    if not path.exists():
        return None
    try:
        importlib.import_module("tokenizers").Tokenizer.from_file(str(path))
    except ImportError:
        return None
    except Exception as error:
        return error
    return None


def _loading_fix(error: BaseException, *, own_code: bool) -> str:
    text = str(error)
    if own_code or "trust_remote_code" in text:
        return (
            "It brings code of its own: read it, set engine.args trust-remote-code: true and "
            "model.accept: [code]."
        )
    if isinstance(error, ImportError) or "nstall it with" in text or "is required to" in text:
        return "The runtime lacks what this tokenizer needs: add the package to runtime.lock."
    return (
        "Its files are cut, or do not belong together, or need a newer vLLM: take them from one "
        f"revision. {fitness_found.OFF}"
    )


def _backend(tokenizer: Any) -> dict[str, Any] | None:
    """What the tokenizers library works by, as tokenizer.json has it; None for Python's own."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    document = json.loads(backend.to_str())
    return document if isinstance(document, dict) else None
