"""The two ways in which a command of the host program says no."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


class HostError(Exception):
    """A refusal or failure, in words for the person who has to act on it.

    what: what did not happen, with the file, unit or address it is about. why: the cause as far as
    it is known. fix: what to do next. detail: lines of evidence, such as the end of a log. result:
    of a job that did its work and found something wrong, what it found.
    """

    result: Any = None

    def __init__(self, what: str, why: str, fix: str, detail: Iterable[str] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix
        self.detail = list(detail)

    def __str__(self) -> str:
        return f"{self.what}: {self.why} {self.fix}"

    def as_dict(self) -> dict[str, object]:
        """The value of "error" in the program's answer."""
        return {"what": self.what, "why": self.why, "fix": self.fix, "detail": self.detail}


class SpecError(HostError):
    """Bad usage or a malformed request: the caller's fault, not the host's (exit code 2)."""
