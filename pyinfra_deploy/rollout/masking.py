"""Secrets masked in what is kept of a run: a log may show what a program was given."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

MASKED = "[masked]"
# Bounded: a line of a log may be long, and of nothing else.
_NAMES = (
    r"[\w.-]{0,60}(?:token|passw(?:or)?d|passphrase|secret|credential|(?:api|access|private)[_-]?key)"
    r"[\w.-]{0,60}"
)
_VALUE = r"[^\s<>\"'&;,\\]+"
# With spaces in it, to its quote or where the line was cut; as JSON within JSON has them, too.
_QUOTES = (r"\\\"", r'"', "'")
_GIVEN = rf"(?i:\b{_NAMES}\\?[\"']?\s*[=:]\s*|--{_NAMES}\s+)"
# A line of PEM has 64 characters, of every kind; a digest in hexadecimal has not.
_PEM_LINE = (
    r"(?<![\w+/=.-])(?=[a-zA-Z+/]*[0-9])(?=[a-z0-9+/]*[A-Z])(?=[A-Z0-9+/]*[a-z])"
    r"[A-Za-z0-9+][A-Za-z0-9+/]{63}(?![\w+/=.-])"
)
_PEM_BEGINS, _PEM_ENDS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"), "-----END"
# Of RSA with 16384 bits; what is longer is no key that was cut.
_MOST_PEM_LINES = 200
_MASKS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        *(
            (rf"({_GIVEN}{quote})(?:(?!{quote})[^\n\\]|(?!{quote})\\.)+", rf"\1{MASKED}")
            for quote in _QUOTES
        ),
        # Before the names: of a header, the scheme would be taken for the value.
        (rf"((?i:\bauthorization\\?[\"']?\s*[=:]\s*\\?[\"']?[\w-]+)\s+){_VALUE}", rf"\1{MASKED}"),
        (r"((?i:\bbasic)\s+)(?=[A-Za-z0-9+/]+[A-Z0-9=])[A-Za-z0-9+/]{8,}={0,2}", rf"\1{MASKED}"),
        (rf"((?i:\b{_NAMES}[\"']?\s*[=:]\s*[\"']?)){_VALUE}", rf"\1{MASKED}"),
        (rf"((?i:--{_NAMES})\s+){_VALUE}", rf"\1{MASKED}"),
        (r"(://)[^/\s@<>]+@", rf"\1{MASKED}@"),
        (rf"((?i:\bbearer)\s+){_VALUE}", rf"\1{MASKED}"),
        (r"\b(?:sk-|hf_|ms-|glpat-|gh[pousr]_|github_pat_)[A-Za-z0-9_-]{8,}", MASKED),
        (r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", MASKED),
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END|\Z)", MASKED),
        (_PEM_LINE, MASKED),
    )
)


def mask(text: str) -> str:
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    return text


@dataclass
class Lines:
    """Masks one line after the other: a private key goes over many. left: how many more of it may
    come."""

    left: int = 0

    def mask(self, text: str) -> str:
        if self.left and _PEM_ENDS not in text:
            self.left -= 1
            return MASKED
        ends = text.rfind(_PEM_ENDS)
        begins = [match.start() for match in _PEM_BEGINS.finditer(text)]
        self.left = _MOST_PEM_LINES if begins and begins[-1] > ends else 0
        return mask(text)


def masked(value: Any) -> Any:
    """Every text in a JSON document, keys excepted."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {key: masked(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        lines = Lines()
        return [lines.mask(one) if isinstance(one, str) else masked(one) for one in value]
    return value
