"""What is wrong with the settings, told to the person who has to mend it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# A fleet of a hundred hosts with one wrong line is one problem, not a hundred lines of names.
_HOSTS_NAMED = 4


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong (or, among warnings, doubtful).

    file: as the operator would type it, relative to the repository where it lies in it.
    line: 1-based, None where there is no such line (a key that is missing altogether).
    key_path: dotted, e.g. "engine.args.max-model-len"; empty when a whole file is meant.
    host: the host, or the hosts ("gpu01, gpu02 and 6 more"), it was found for; None for files.
    found: what stands there now; None when nothing does, or when it is a secret.
    """

    file: str
    line: int | None
    key_path: str
    host: str | None
    found: str | None
    message: str
    fix: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        head = ": ".join(part for part in (place, self.key_path) if part)
        if self.host:
            head = f"{head} ({self.host})" if head else self.host
        lines = [head]
        if self.found is not None:
            lines.append(f"  found: {self.found}")
        lines.append(f"  {self.message}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class SettingsError(Exception):
    """Everything that is wrong, of all files and all hosts. `str()` is the finished text."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = gather(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        noun = "problem" if count == 1 else "problems"
        return "\n".join([*map(str, self.problems), f"{count} {noun} in the settings."])


def gather(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Fold what differs only by its host into one, and sort by file, line and key."""
    hosts: dict[Problem, list[str]] = {}
    for problem in problems:
        names = hosts.setdefault(replace(problem, host=None), [])
        if problem.host and problem.host not in names:
            names.append(problem.host)
    folded = [replace(problem, host=_name(names)) for problem, names in hosts.items()]
    return tuple(sorted(folded, key=lambda p: (p.file, p.line or 0, p.key_path, p.message)))


def _name(hosts: list[str]) -> str | None:
    if not hosts:
        return None
    if len(hosts) == 1:
        return f"host {hosts[0]}"
    if len(hosts) <= _HOSTS_NAMED:
        return "hosts " + ", ".join(hosts)
    rest = len(hosts) - _HOSTS_NAMED + 1
    return "hosts " + ", ".join(hosts[: _HOSTS_NAMED - 1]) + f" and {rest} more"


def describe(value: object) -> str:
    """A value as the operator sees it, with its kind where that is what goes wrong."""
    if isinstance(value, str):
        # A password in a URL is refused, and not repeated on the screen.
        value = re.sub(r"://[^/@\s]*@", "://********@", value)
        # Nor what a terminal would obey.
        value = "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return f"{str(value).lower()} (yes/no)"
        case int() | float():
            return f"{value} (a number)"
        case str():
            return f'"{value}" (text)' if len(value) <= 120 else f'"{value[:117]}..." (text)'
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case _:
            return f"a value of kind {type(value).__name__}"
