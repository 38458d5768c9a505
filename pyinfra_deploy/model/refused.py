"""Why something could not be done, for the person who asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Refused(Exception):
    """what, why and fix are sentences; detail: further lines, at most some dozens."""

    def __init__(self, what: str, why: str, fix: str, detail: Iterable[str] = ()) -> None:
        self.what, self.why, self.fix = what, why, fix
        self.detail = tuple(detail)
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what, f"  why: {self.why}", f"  fix: {self.fix}"]
        return "\n".join(lines + [f"  | {line}" for line in self.detail])
