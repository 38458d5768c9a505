"""The last step of a proof: vLLM reads the model's configuration and knows its architecture."""

from __future__ import annotations

import difflib
import importlib
import traceback
from pathlib import Path
from typing import Any

from . import durable
from .errors import HostError

MOST_LINES = 15
# vLLM's fallback for what it has no code of its own for: Transformers' (model-impl: transformers).
FALLBACK = "TransformersForCausalLM"


def check(asked: dict[str, Any], seen: dict[str, Any]) -> None:
    """HostError unless this vLLM can load that model, as far as its configuration tells."""
    model = Path(asked["model"])
    known = supported()
    trusted = asked["trust_remote_code"] is True
    architectures = configured(model, trusted)
    seen["architectures"] = architectures
    own = [name for name in architectures if name in known]
    if own:
        return
    fallback = _fallback(architectures, model, known, trusted=trusted)
    if fallback:
        seen["fallback"] = fallback
        return
    near = [
        close
        for name in architectures
        for close in difflib.get_close_matches(name, known, n=2, cutoff=0.75)
    ]
    words = ", ".join(architectures)
    raise HostError(
        f"this vLLM does not know the model's architecture {words}",
        f"{model / 'config.json'} names it, and it is not among the {len(known)} that vLLM "
        f"{asked.get('vllm') or ''} has".rstrip()
        + (f"; near it: {', '.join(dict.fromkeys(near))}." if near else "."),
        "A newer model needs a newer vLLM: pin one (runtime.vllm and runtime.lock), or another "
        "model. A model with code of its own needs engine.args trust-remote-code: true.",
    )


def supported() -> list[str]:
    """The architectures in the registry of the installed vLLM."""
    try:
        registry = importlib.import_module("vllm").ModelRegistry
        return sorted(str(name) for name in registry.get_supported_archs())
    except Exception as error:
        raise HostError(
            "vLLM's list of architectures cannot be read",
            f"{type(error).__name__}: {error}.",
            "The runtime is damaged, or of a version that this program does not know; with "
            "engine.proof: off the release goes live unproven.",
            last_lines(error),
        ) from error


def configured(model: Path, trusted: bool) -> list[str]:
    """The model's architectures, as vLLM's own reading of its configuration gives them."""
    try:
        reading = importlib.import_module("vllm.transformers_utils.config")
        config = reading.get_config(str(model), trust_remote_code=trusted)
    except Exception as error:
        needs_code = "trust_remote_code" in str(error)
        raise HostError(
            f"this vLLM cannot read the model's configuration in {model}",
            f"{type(error).__name__}: {(str(error).splitlines() or ['no words'])[0].rstrip('.')}.",
            "The model brings code of its own: set engine.args trust-remote-code: true if you "
            "trust it."
            if needs_code
            else "A model_type that it does not know needs a newer vLLM; else pull the model anew.",
            last_lines(error),
        ) from error
    names = getattr(config, "architectures", None) or []
    if not names:
        raise HostError(
            "the model's configuration names no architecture",
            f"{model / 'config.json'} has no 'architectures'.",
            "Is this a model, or a part of one (an adapter, a draft)?",
        )
    return [str(name) for name in names]


def _fallback(architectures: list[str], model: Path, known: list[str], *, trusted: bool) -> str:
    """How the model runs although vLLM has no code of its own for it; empty: not at all."""
    if FALLBACK not in known:
        return ""
    transformers = importlib.import_module("transformers")
    if any(hasattr(transformers, name) for name in architectures):
        return "by Transformers' own code, which is slower"
    document = durable.read_json(model / "config.json") or {}
    if trusted and isinstance(document, dict) and document.get("auto_map"):
        return "by the model's own code"
    return ""


def last_lines(error: BaseException) -> list[str]:
    """The end of a traceback."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return text.splitlines()[-MOST_LINES:]
