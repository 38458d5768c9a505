"""Whether a tokenizer and a model's configuration mean the same vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .fitness_files import CONFIG, GENERATION, language_config
from .fitness_found import some

if TYPE_CHECKING:
    from .fitness_found import Found

# Models are padded to more rows than they have tokens: Qwen3 has 151936 for 151669
# (b4rtaz/distributed-llama#282), Qwen2.5-7B 152064 (QwenLM/Qwen3#1247), DeepSeekMoE 102400 for
# 100015 (deepseek-ai/DeepSeek-MoE#14). A tokenizer that lacks more is another model's, or was cut.
MISSING_SHARE, MISSING_TOKENS = 0.1, 4096
# Of the tokens that consist of several others, how many some merge has to make. Byte-level BPE has
# them all; sentencepiece's converted ones lack a few user-defined symbols.
MERGED_SHARE = 0.5
FEWEST_TOKENS = 300


def check_size(
    tokenizer: Any, config: dict[str, Any], rows: int | None, found: Found
) -> int | None:
    """Refuses a tokenizer of another vocabulary; how many ids the model has."""
    size = language_config(config).get("vocab_size")
    size = size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None
    if size is not None and rows is not None and size != rows:
        found.warn(f"{CONFIG} says vocab_size {size}, and the embeddings have {rows} rows")
    known = [number for number in (size, rows) if number is not None]
    if not known:
        found.warn(f"neither {CONFIG} nor the weights tell the vocabulary's size")
        return None
    limit = min(known)
    vocabulary = tokenizer.get_vocab()
    added = special_ids(tokenizer)
    outside = sorted(
        (number, str(token)) for token, number in vocabulary.items() if number >= limit
    )
    names = [f"{token!r} is {number}" for number, token in outside]
    # gemma-3-1b: its tokenizer has <image_soft_token> as 262144, and the text model 262144 rows
    # (huggingface/transformers#37011).
    if outside and all(number in added for number, _ in outside):
        found.warn(
            f"{len(outside)} added tokens have no row in the model ({some(names)}; it has {limit}):"
            " a prompt with one of them fails"
        )
    elif outside:
        found.refuse(
            f"its tokenizer has {len(outside)} tokens more than the model has rows",
            f"the model has {limit}, and {some(names)}: the engine would fail at the first.",
            "The tokenizer is another model's, or tokens were added without their rows: take both "
            "from one revision.",
        )
    missing = limit - len(vocabulary)
    if missing > max(MISSING_TOKENS, MISSING_SHARE * limit):
        found.refuse(
            f"its tokenizer has {len(vocabulary)} tokens, and the model {limit}",
            f"what the model says with the other {missing} would be lost.",
            "The tokenizer is another model's, or was cut: take both from one revision.",
        )
    return limit


def special_ids(tokenizer: Any) -> set[int]:
    """Ids that are no ordinary text."""
    decoder = getattr(tokenizer, "added_tokens_decoder", None) or {}
    return {int(number) for number in (*decoder, *(tokenizer.all_special_ids or ()))}


def check_special_tokens(
    tokenizer: Any, documents: dict[str, Any], limit: int | None, found: Found
) -> None:
    """bos, eos and pad of config.json and generation_config.json: inside the vocabulary, and no
    ordinary text. A wrong end of text makes every answer as long as it may be."""
    tokens = {number: token for token, number in tokenizer.get_vocab().items()}
    special = special_ids(tokenizer)
    ends: list[str] = []
    wrong: list[str] = []
    for name, document in (
        (CONFIG, language_config(documents.get(CONFIG) or {})),
        (GENERATION, documents.get(GENERATION) or {}),
    ):
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            for number in _numbers(document.get(key)):
                said = f"{key} {number} of {name}"
                outside = number < 0 or (limit is not None and number >= limit)
                if outside and key == "eos_token_id":
                    found.refuse(
                        f"{said} is outside the vocabulary",
                        f"the model has {limit} tokens, from 0 on.",
                        f"Correct it in a copy of the model, and lock that one; its end of text is "
                        f"probably {tokenizer.eos_token!r}, {tokenizer.eos_token_id}.",
                    )
                elif outside and not (key == "pad_token_id" and number < 0):
                    found.warn(f"{said} is outside the vocabulary of {limit}")
                elif key == "eos_token_id" and number not in special:
                    token = tokens.get(number)
                    what = "no token" if token is None else f"the ordinary token {token!r}"
                    wrong.append(f"{said} is {what} of the tokenizer")
                elif key == "eos_token_id":
                    ends.append(said)
                elif number >= 0 and number not in tokens:
                    found.warn(f"{said} is no token of the tokenizer")
    if wrong:
        found.judge(
            refuse=not ends,
            what=some(wrong),
            why="the tokenizer is another model's, or config is; no answer would end by itself."
            if not ends
            else "it ends no answer",
        )
    elif not ends and tokenizer.eos_token_id is None:
        found.warn("nothing names a token that ends a text: answers are as long as they may be")


def _numbers(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, int) and not isinstance(one, bool)]


def check_merges(backend: dict[str, Any], found: Found) -> None:
    """backend: a tokenizer.json's content. Without its merges byte-pair encoding still works, one
    token a byte: five times as long, and nothing that the model was trained on."""
    model = backend.get("model") or {}
    if model.get("type") != "BPE":
        return
    added = {token.get("content") for token in backend.get("added_tokens") or []}
    prefix = model.get("continuing_subword_prefix") or ""
    composed = {
        token for token in model.get("vocab") or {}
        if len(token) > 1 and token not in added and not token.startswith("<0x")
    }  # fmt: skip
    if len(composed) < FEWEST_TOKENS:
        return
    made = set()
    for merge in model.get("merges") or []:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        made.add(left + right.removeprefix(prefix) if prefix else left + right)
    reached = len(composed & made)
    if reached < MERGED_SHARE * len(composed):
        found.refuse(
            "its tokenizer's merges are missing",
            f"{len(model.get('merges') or [])} merges make {reached} of the {len(composed)} tokens "
            "that consist of others; text would become single letters.",
            "Take the tokenizer's files of one revision; they were cut or converted half.",
        )
