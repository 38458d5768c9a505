"""Warnings about `accept_findings`: entries that accept nothing."""

from __future__ import annotations

import difflib
import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pyinfra_deploy.settings.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyinfra_deploy.settings.inventory_file import Located
    from pyinfra_deploy.settings.schema import Settings

# Only its ids are read: settings know nothing of planning, and parsing it takes a while.
_TABLE = Path(__file__).resolve().parents[1] / "planning" / "tables" / "findings.yml"


@cache
def finding_ids() -> tuple[str, ...]:
    text = _TABLE.read_text(encoding="utf-8")
    return tuple(re.findall(r"^  - id: (\S+)$", text, re.MULTILINE))


def acceptance_doubts(
    ours: dict[str, Located], settings: Settings, hosts: Collection[str]
) -> Iterator[Problem]:
    """`hosts`: all names of the inventory."""
    for number, one in enumerate(settings.accept_findings):
        if one.id not in finding_ids():
            close = difflib.get_close_matches(one.id, finding_ids(), 1, 0.6)
            yield _doubt(
                ours,
                (number, "id"),
                f'there is no finding "{one.id}", so nothing is accepted.',
                f'did you mean "{close[0]}"?' if close else "docs/findings/README.md lists them.",
            )
        for at, pattern in enumerate(one.hosts):
            if any(fnmatchcase(name, pattern) for name in hosts):
                continue
            close = difflib.get_close_matches(pattern, list(hosts), 1)
            yield _doubt(
                ours,
                (number, "hosts", at),
                f'"{pattern}" matches no host of the inventory (groups are not looked at), so it '
                "accepts nothing.",
                f'did you mean "{close[0]}"?' if close else "write a host's name, or gpu*.",
            )


def _doubt(ours: dict[str, Located], below: tuple[object, ...], message: str, fix: str) -> Problem:
    located = ours["accept_findings"]
    path = ".".join(map(str, ("accept_findings", *below)))
    return Problem(located.document.shown, located.line(*below), path, None, None, message, fix)
