"""A model's tokenizer files, and what its configuration and weights say of the vocabulary."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .safetensors import LARGEST_HEADER_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from .fitness_found import Found

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
SETTINGS = "tokenizer_config.json"
INDEX = "model.safetensors.index.json"
JSON_FILES = (CONFIG, GENERATION, TOKENIZER, SETTINGS, "special_tokens_map.json",
              "added_tokens.json", "vocab.json", "chat_template.json")  # fmt: skip
# Whole tokenizers: sentencepiece's, tiktoken's, Mistral's, BERT's. vocab.json needs merges.txt.
WHOLE = (TOKENIZER, "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json",
         "vocab.txt")  # fmt: skip
WHOLE_ENDINGS = (".tiktoken", ".model")
# Where a multimodal model says what its language model is.
INNER = ("text_config", "llm_config", "language_config", "language_model")
# The input embeddings, by the ends of their names in vLLM's and Transformers' models.
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight",
              "tok_embeddings.weight", "embed_in.weight")  # fmt: skip
GENERATES = ("CausalLM", "ConditionalGeneration", "LMHead")


def read_documents(model: Path, found: Found) -> dict[str, Any]:
    """name -> content, of those that are there; what cannot be read is refused."""
    documents: dict[str, Any] = {}
    for name in JSON_FILES:
        try:
            documents[name] = json.loads((model / name).read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            found.refuse(f"{name} cannot be read", f"{type(error).__name__}: {error}.")
    if not isinstance(documents.get(CONFIG), dict):
        found.refuse(f"{CONFIG} is missing or no mapping", "nothing says what the model is.")
    return documents


def check_files(model: Path, documents: dict[str, Any], found: Found) -> None:
    """Whether there is a tokenizer at all, and the whole of it."""
    names = {path.name for path in model.iterdir()}
    whole = names & set(WHOLE) or any(name.endswith(WHOLE_ENDINGS) for name in names)
    if not whole and {"vocab.json", "merges.txt"} & names:
        for missing in {"vocab.json", "merges.txt"} - names:
            found.refuse(
                f"the tokenizer's {missing} is missing",
                f"there is no {TOKENIZER} either, so nothing says how text becomes tokens.",
                "Lock the model anew, and look whether its repository has the file.",
            )
    elif not whole and not brings_code(documents):
        found.refuse(
            "it has no tokenizer",
            f"none of {', '.join(WHOLE)} is there.",
            "Take the tokenizer's files of the model that this one was made from; or name another "
            "tokenizer in engine.args.",
        )
    if SETTINGS not in names:
        found.warn(f"{SETTINGS} is missing: the tokenizer's class is guessed by the model's type")


def brings_code(documents: dict[str, Any]) -> bool:
    """Whether the repository's own code is its tokenizer."""
    settings = documents.get(SETTINGS)
    return isinstance(settings, dict) and "AutoTokenizer" in (settings.get("auto_map") or {})


def language_config(config: dict[str, Any]) -> dict[str, Any]:
    """What config.json says of the language model, the outer level below the inner."""
    inner: dict[str, Any] = next(
        (config[key] for key in INNER if isinstance(config.get(key), dict)), {}
    )
    return {**config, **{key: value for key, value in inner.items() if value is not None}}


def generates_text(config: dict[str, Any]) -> bool:
    """Whether tokens are ever turned back into text: not with classifiers and embeddings."""
    names = [str(name) for name in config.get("architectures") or []]
    return not names or any(part in name for name in names for part in GENERATES)


def embedding_rows(model: Path) -> int | None:
    """Rows of the input embeddings, from the header of their file; None where there are none of a
    name that is known here."""
    index = model / INDEX
    try:
        if index.is_file():
            weights = json.loads(index.read_bytes())["weight_map"]
            places = {name: model / file for name, file in weights.items() if _is_embedding(name)}
        else:
            places = dict.fromkeys(EMBEDDINGS, model / "model.safetensors")
        rows = [_rows(path, name) for name, path in places.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # weights of another format; the pull has verified safetensors
    return max((count for count in rows if count is not None), default=None)


def _is_embedding(name: str) -> bool:
    return name in EMBEDDINGS or name.endswith(tuple(f".{end}" for end in EMBEDDINGS))


def _rows(path: Path, name: str) -> int | None:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LARGEST_HEADER_BYTES:
            return None
        header = json.loads(file.read(length))
    for found, tensor in header.items():
        if found == name or found.endswith(f".{name}"):
            shape = tensor["shape"]
            # One column: packed by a quantisation, whose rows are not the vocabulary.
            return int(shape[0]) if len(shape) == 2 and shape[1] > 1 else None
    return None
