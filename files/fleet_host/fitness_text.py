"""Texts that have to come through a tokenizer as they are: encoded, decoded, compared.

Byte-level BPE without a normalizer (GPT-2, Llama 3) is exact. Qwen's composes characters (NFC).
Tokenizers of sentencepiece put "▁" for a space and one before the text; those of T5 fold full-width
characters (NFKC), BERT's case and accents. What a tokenizer's own normalizer says is its maker's
decision, and a warning; what is lost beyond that is damage.
(transformers 5.24, convert_slow_tokenizer.py: Qwen2Converter, TikTokenConverter, SpmConverter.)
"""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING, Any

from .fitness_found import some

if TYPE_CHECKING:
    from typing import Literal

    Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

    from .fitness_found import Found

TEXTS = {
    "plain English": "The quick brown fox, isn't it? (Yes: 42%!)",
    "full-width brackets": "（全角）【括号】「引用」《书名》＜ＡＢＣ＞，。！？：；",
    "currency signs": "$1 €2 £3 ¥4 ￥5 ₩6 ₹7 ₽8 ₺9 ₿10 ¢11 ฿12",
    "combining characters": "e\u0301 n\u0303 A\u030a tie\u0302\u0301ng क्षि ที่นี่ \u0627\u0651",
    "emoji": "🙂👍🏽👨\u200d👩\u200d👧\u200d👦🇩🇪❤\ufe0f🧑🏾\u200d🚀",
    "Chinese, Japanese, Korean": "汉字漢字かなカナ한글𠮷々〆ヶ",
    "right to left": "שלום عربي \u200fفارسی\u200e ۱۲۳",
    "control characters": "a\tb\r\nc\x1b[31md\x07e\x7f\u200b\u00a0\ufeff\u2028f",
    "long runs of spaces": "if x:\n"
    + " " * 41
    + "y\n"
    + "\n" * 7
    + "\t" * 9
    + "z"
    + " " * 17
    + "w",
    "spaces at both ends": "  leading and trailing   ",
    "numbers and units": "1234567890 1.234,56 ½ ² ₂ ㎡ ℃ №7 ±∞≠ 10⁻³",
    "code": 'def f(a):\n    return {"k": [a, -1.5e-3], \'s\': "\\n"}  # ok\n',
}
SHOWN = 100
FORMS: tuple[Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")


def check_texts(tokenizer: Any, found: Found) -> None:
    """Of a model that writes text."""
    explained: dict[str, list[str]] = {}
    for name, text in TEXTS.items():
        try:
            ids = tokenizer.encode(text, add_special_tokens=False)
            back = tokenizer.decode(
                ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        except Exception as error:
            found.refuse(
                f"its tokenizer fails at {name}",
                f"{type(error).__name__}: {error}; the text was {quoted(text)}.",
            )
            continue
        if back == text:
            continue
        reason = explanation(tokenizer, text, back)
        if reason is not None:
            explained.setdefault(reason, []).append(f"{name} ({first_difference(text, back)})")
            continue
        unknown = getattr(tokenizer, "unk_token_id", None)
        lost = "; it has no token for some of it" if unknown in ids else ""
        found.refuse(
            f"its tokenizer does not give {name} back",
            f"{quoted(text)} comes back as {quoted(back)}: {first_difference(text, back)}{lost}.",
        )
    for reason, names in explained.items():
        found.warn(f"{reason}: {some(names)}")


def explanation(tokenizer: Any, text: str, back: str) -> str | None:
    """Which property of the tokenizer makes this of the text; None: none that is known."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if normalizer is not None:
        said = normalizer.normalize_str(text)
        for reading in (said, said.replace("▁", " ")):
            if back == reading:
                return f"its normalizer ({kind_of(normalizer)}) changes text"
            if back.strip(" ") == reading.strip(" "):
                return f"its normalizer ({kind_of(normalizer)}) and its pre-tokenizer change spaces"
    elif not hasattr(tokenizer, "backend_tokenizer"):
        # Code of the model's own: it does not say what it does, these are what such code does.
        for form in FORMS:
            if back == unicodedata.normalize(form, text):
                return f"its code composes characters ({form})"
    if back.lstrip(" ") == text.lstrip(" ") and abs(len(back) - len(text)) == 1:
        return "it puts a space before the text, or takes one away, as sentencepiece does"
    return None


def kind_of(normalizer: Any) -> str:
    """ "NFC", "Replace, Lowercase" of a normalizer of the tokenizers library."""
    try:
        document = json.loads(normalizer.__getstate__())
    except (AttributeError, TypeError, ValueError):
        return type(normalizer).__name__
    parts = document.get("normalizers") or [document]
    return ", ".join(str(part.get("type")) for part in parts)


def quoted(text: str) -> str:
    shown = json.dumps(text, ensure_ascii=False)
    return shown if len(shown) <= SHOWN else f'{shown[:SHOWN]}..."'


def first_difference(text: str, back: str) -> str:
    """Where, and which characters, by their numbers: many look like each other."""
    at = next((n for n, (a, b) in enumerate(zip(text, back)) if a != b), min(len(text), len(back)))  # noqa: B905
    return f"at {at} {_point(text, at)} became {_point(back, at)}"


def _point(text: str, at: int) -> str:
    return f"U+{ord(text[at]):04X}" if at < len(text) else "nothing"
