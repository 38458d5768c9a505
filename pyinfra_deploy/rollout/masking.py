"""Secrets masked in what is kept of a run: a log may show what a program was given."""

from __future__ import annotations

import re
from typing import Any

MASKED = "[masked]"
_NAMES = r"[\w.-]*(?:token|passw(?:or)?d|secret|credential|api[_-]?key)[\w.-]*"
_VALUE = r"[^\s<>\"'&;,\\]+"
_MASKS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"((?i:\b{_NAMES}[\"']?\s*[=:]\s*[\"']?)){_VALUE}", rf"\1{MASKED}"),
        (rf"((?i:--{_NAMES})\s+){_VALUE}", rf"\1{MASKED}"),
        (r"(://)[^/\s@<>]+@", rf"\1{MASKED}@"),
        (rf"((?i:\bbearer)\s+){_VALUE}", rf"\1{MASKED}"),
        (r"\b(?:sk-|hf_|ms-)[A-Za-z0-9_-]{8,}", MASKED),
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END|\Z)", MASKED),
    )
)


def mask(text: str) -> str:
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    return text


def masked(value: Any) -> Any:
    """Every text in a JSON document, keys excepted."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {key: masked(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked(one) for one in value]
    return value
