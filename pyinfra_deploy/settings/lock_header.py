"""Which Python a requirements lock was made for: its comments hold the command that made it."""

from __future__ import annotations

import re
from functools import lru_cache

_MADE_FOR = re.compile(r"--python(?:-version)?[= ](3\.\d+)\b")


@lru_cache(maxsize=64)
def python_of_lock(text: str) -> str | None:
    """3.12 of a lock whose header says --python-version 3.12, as `uv pip compile` and locks/make.py
    write it. None where it does not say, or holds for several (--universal)."""
    header = [line for line in text.splitlines() if line.startswith("#")]
    found = {
        match[1]
        for line in header
        if "--universal" not in line
        if (match := _MADE_FOR.search(line))
    }
    return found.pop() if len(found) == 1 else None
