"""The one exception an operator of the lab sees."""

from __future__ import annotations


class LabError(Exception):
    """A refusal or failure of the lab: what happened, why, and what to do next."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(what, why, fix)
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}\n  why: {self.why}\n  fix: {self.fix}"
