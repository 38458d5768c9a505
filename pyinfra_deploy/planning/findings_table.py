"""Every finding id and what it means, and the pages of docs/findings that are made of that."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyinfra_deploy.planning import tables

if TYPE_CHECKING:
    from pyinfra_deploy.planning.tables.rows import FindingRow

INDEX = "README.md"
_WRITTEN = (
    "<!-- Written by `fleet findings docs` from pyinfra_deploy/planning/tables/findings.yml; "
    "edit that instead. -->"
)
_SEVERITIES = {
    "refuse": "refuses: the host is left as it is until this is mended or accepted",
    "warn": "warns: it will run, and something about it is not as it should be",
    "note": "notes: good to know, nothing to do now",
}


@functools.cache
def _by_id() -> dict[str, FindingRow]:
    return {row.id: row for row in tables.findings().findings}


def finding_row(identifier: str) -> FindingRow | None:
    return _by_id().get(identifier)


def known_ids() -> tuple[str, ...]:
    return tuple(_by_id())


def as_text(row: FindingRow) -> str:
    """For the terminal (`fleet findings show`)."""
    accept = "" if _can_be_accepted(row) else "\n\nIt cannot be accepted."
    return (
        f"{row.id} - {row.title}\n({_severity(row)})\n\n{row.meaning.strip()}\n\n"
        f"What to do: {row.fix.strip()}\n\nSource: {row.source}{accept}"
    )


def pages() -> dict[str, str]:
    """File name -> Markdown, of docs/findings."""
    made = {f"{row.id}.md": _page(row) for row in tables.findings().findings}
    made[INDEX] = _index()
    return made


def _severity(row: FindingRow) -> str:
    usual, *others = (_SEVERITIES[one] for one in row.severity)
    if not others:
        return usual
    return usual + "; in lesser cases it " + " or ".join(other.split(":")[0] for other in others)


def _can_be_accepted(row: FindingRow) -> bool:
    return row.acceptable or "refuse" not in row.severity


def _page(row: FindingRow) -> str:
    parts = [
        f"# {row.id}",
        _WRITTEN,
        f"**{row.title}.** It {_severity(row)}.",
        row.meaning.strip(),
        "## What to do",
        row.fix.strip(),
    ]
    if "refuse" in row.severity and row.acceptable:
        parts += [
            "## To go on in spite of it",
            "In `group_vars`, with a reason and a last day; it stays visible as a warning:",
            f"```yaml\naccept_findings:\n  - id: {row.id}\n    hosts: [gpu01]\n"
            "    reason: why it may be so\n    until: 2027-01-31\n    by: your name\n```",
        ]
    elif "refuse" in row.severity:
        parts.append("It cannot be accepted: nothing could run in spite of it.")
    parts.append(f"Source: {row.source}")
    return "\n\n".join(parts) + "\n"


def _index() -> str:
    areas: dict[str, list[FindingRow]] = {}
    for row in tables.findings().findings:
        areas.setdefault(row.id.split(".")[0], []).append(row)
    lines = [
        "# Findings",
        "",
        _WRITTEN,
        "",
        "What `fleet plan` and `deploy.py` have to say about a host, each with the line that was "
        "read and what to do. `fleet findings show ID` prints a page on the terminal.",
        "",
        "- **refuse**: the host is left as it is, the others go on. `accept_findings` "
        "(docs/settings.md) turns most into a warning, with a reason and a last day.",
        "- **warn**: it will run, and something about it is not as it should be.",
        "- **note**: good to know, nothing to do now.",
    ]
    for area, rows in sorted(areas.items()):
        lines += ["", f"## {area}", "", "| Id | Severity | What it is |", "|---|---|---|"]
        lines += [
            f"| [{row.id}]({row.id}.md) | {', '.join(row.severity)} | {row.title} |"
            for row in sorted(rows, key=lambda row: row.id)
        ]
    return "\n".join(lines) + "\n"
