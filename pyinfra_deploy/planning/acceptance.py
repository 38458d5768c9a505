"""`accept_findings`: a refusal that somebody takes on becomes a warning, with reason and last day.

Pure: the day is handed in.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.findings_table import finding_row, known_ids

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Iterator

    from pyinfra_deploy.settings.schema import AcceptedFinding

_SOURCE = "accept_findings in group_vars"


def accept(
    host: str,
    findings: Iterable[Finding],
    accepted: Iterable[AcceptedFinding],
    today: datetime.date,
) -> tuple[Finding, ...]:
    """The findings of one host, its accepted refusals as warnings, and findings about acceptances
    that have run out, name no finding, or cannot be."""
    here = [one for one in accepted if not one.hosts or _matches(host, one)]
    current = {one.id: one for one in here if one.until >= today and _is_acceptable(one.id)}
    findings = tuple(findings)
    return (
        *(_accepted(finding, current.get(finding.id)) for finding in findings),
        *_about(host, here, findings, today),
    )


def is_accepted(
    host: str, identifier: str, accepted: Iterable[AcceptedFinding], today: datetime.date
) -> bool:
    """Whether a refusal of this kind is accepted for a host today."""
    return any(
        one.id == identifier and one.until >= today and _is_acceptable(identifier)
        for one in accepted
        if not one.hosts or _matches(host, one)
    )


def _matches(host: str, one: AcceptedFinding) -> bool:
    return any(fnmatchcase(host, pattern) for pattern in one.hosts)


def _is_acceptable(identifier: str) -> bool:
    row = finding_row(identifier)
    return row is not None and row.acceptable


def _accepted(finding: Finding, by: AcceptedFinding | None) -> Finding:
    if by is None or finding.severity != "refuse":
        return finding
    return replace(
        finding,
        severity="warn",
        message=f"{finding.message}. Accepted by {by.by} until {by.until}: {by.reason}",
    )


def _about(
    host: str, here: list[AcceptedFinding], findings: tuple[Finding, ...], today: datetime.date
) -> Iterator[Finding]:
    refused = {finding.id for finding in findings if finding.severity == "refuse"}
    for one in here:
        evidence = f"id: {one.id}, until: {one.until}, by: {one.by}, reason: {one.reason}"
        row = finding_row(one.id)
        subject = f"accept_findings {one.id}"
        if row is None:
            close = difflib.get_close_matches(one.id, known_ids(), 1, 0.6)
            yield Finding(
                "acceptance.unknown",
                "warn",
                host,
                subject,
                "there is no finding with this id, so nothing is accepted",
                f"did you mean {close[0]}?" if close else "docs/findings/README.md lists all ids",
                evidence=evidence,
                source=_SOURCE,
            )
        elif not row.acceptable:
            yield Finding(
                "acceptance.not-possible",
                "warn",
                host,
                subject,
                f"{one.id} cannot be accepted: nothing could run in spite of it",
                "remove it from accept_findings, and do what the finding asks for",
                evidence=evidence,
                source=_SOURCE,
            )
        elif one.until < today:
            yield Finding(
                "acceptance.expired",
                "warn",
                host,
                subject,
                f"its last day was {one.until}"
                + (", so it refuses again" if one.id in refused else ""),
                "do what the finding asks for; or look again whether it may stay, and write a new "
                "day and reason"
                if one.id in refused
                else "remove it from accept_findings",
                evidence=evidence,
                source=_SOURCE,
            )
        elif one.id not in refused:
            yield Finding(
                "acceptance.unused",
                "note",
                host,
                subject,
                "this host has no such refusal",
                "remove it from accept_findings if it is mended, so that it does not hide the next "
                "one",
                evidence=evidence,
                source=_SOURCE,
            )
