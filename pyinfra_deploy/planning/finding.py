"""A finding: one shape for everything that planning has to say about a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["refuse", "warn", "note"]


@dataclass(frozen=True)
class Finding:
    """Something that was seen on a host, and what to do about it.

    `evidence` is the line or value that was read; `fix` is what to type or write next; `source`
    says why it is so (a manual page, an issue, a fact of this project).
    """

    id: str
    severity: Severity
    host: str
    subject: str
    message: str
    fix: str
    evidence: str = ""
    source: str = ""

    def __str__(self) -> str:
        lines = [f"{self.severity}: {self.host}: {self.subject}: {self.message} [{self.id}]"]
        if self.evidence:
            lines.append(f"    seen:   {self.evidence}")
        lines.append(f"    fix:    {self.fix}")
        if self.source:
            lines.append(f"    source: {self.source}")
        return "\n".join(lines)
