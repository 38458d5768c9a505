"""What goes wrong with keys and certificates, told to the operator."""

from __future__ import annotations


class KeysError(Exception):
    """An operator can mend this. The text says what, where, why and what to do; no key is in it."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(f"{what}\n  why: {why}\n  fix: {fix}")
        self.what = what
        self.why = why
        self.fix = fix
