"""A YAML parser's complaint in words that say what to change.

The parsers (libyaml, and PyYAML's own where libyaml is missing) word the same mistake differently
and often point one line too far; both wordings are recognised here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyinfra_deploy.settings.yaml_aliases import TOO_DEEP

if TYPE_CHECKING:
    import yaml

_NO_SPACE = re.compile(r"^\s*(?:- )?[\w.-]+:[^\s:/]")
_INDENT = ("did not find expected", "expected <block end>", "violates indentation")

# By YAML's tag: what reads like one of these kinds, and is none.
NO_SUCH_VALUE = {
    "timestamp": "there is no such day or time",
    "int": "this is no number",
    "float": "this is no number",
}


def explain(error: yaml.MarkedYAMLError, text: str) -> tuple[int | None, str, str]:
    """(1-based line, what is wrong, how to mend it)."""
    lines = text.splitlines()
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "cannot be parsed"
    if mark is None:
        return None, f"is not valid YAML: {problem}.", "correct the file."
    at = min(int(mark.line), max(len(lines) - 1, 0))

    tab = _tab_near(lines, at)
    if tab is not None:
        return (
            tab + 1,
            "a tab is used for indentation; YAML allows only spaces.",
            "replace the tab with two spaces per level.",
        )
    if "could not find expected ':'" in problem:
        context = error.context_mark
        return _colon(lines, at if context is None else int(context.line))
    if "mapping values are not allowed" in problem:
        return _stray_mapping(lines, at)
    if any(words in problem for words in _INDENT):
        return (
            at + 1,
            f"the indentation of this line does not fit the lines around it: {_quote(lines, at)}.",
            "align it with its siblings (same number of spaces), two more for a child.",
        )
    if "single document" in (error.context or "") or "another document" in problem:
        return at + 1, "a second document begins here (---).", "keep one document per file."
    if "maximum nesting depth" in problem:
        return (at + 1, *TOO_DEEP)
    if "could not determine a constructor" in problem:
        return at + 1, f"{problem}.", "of YAML's tags only !vault and !unsafe are known here."
    if problem.startswith(NO_SUCH_VALUE["timestamp"]):
        return (
            at + 1,
            f"{problem}: {_quote(lines, at)}.",
            "write a day of the calendar, as 2027-02-28; text that only looks like one needs "
            "quotes.",
        )
    if any(problem.startswith(words) for words in NO_SUCH_VALUE.values()):
        return at + 1, f"{problem}: {_quote(lines, at)}.", "put it in quotes if it is text."
    if "cannot start any token" in problem:
        return (
            at + 1,
            f"a value cannot begin like this: {_quote(lines, at)}.",
            "put the value in quotes.",
        )
    return at + 1, f"is not valid YAML: {problem}.", f"look at: {_quote(lines, at)}"


def _tab_near(lines: list[str], at: int) -> int | None:
    for number in (at, at - 1, at + 1):
        if 0 <= number < len(lines) and "\t" in _indentation(lines[number]):
            return number
    return None


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _colon(lines: list[str], at: int) -> tuple[int, str, str]:
    line = lines[at] if at < len(lines) else ""
    if _NO_SPACE.match(line):
        return (
            at + 1,
            f"there is no space after the colon: {_quote(lines, at)}.",
            'write "key: value", with a space.',
        )
    return (
        at + 1,
        f"there is no colon after the key: {_quote(lines, at)}.",
        f'write "{line.strip().split(" ")[0]}: ..."; text over several lines needs quotes.',
    )


def _stray_mapping(lines: list[str], at: int) -> tuple[int, str, str]:
    above = at - 1
    while above >= 0 and not _code(lines[above]):
        above -= 1
    if above >= 0:
        code = _code(lines[above])
        is_key = code.endswith(":") or ": " in code
        if not is_key and not code.startswith("- "):
            return _colon(lines, above)
        if not code.endswith((":", "|", ">")) and len(_indentation(lines[at])) > len(
            _indentation(lines[above])
        ):
            return (
                at + 1,
                f"this line is indented as a child of line {above + 1}, which has a value already:"
                f" {_quote(lines, at)}.",
                "align the two, or remove the value above.",
            )
    return (
        at + 1,
        f'a second ": " in one line, or an indentation that does not fit: {_quote(lines, at)}.',
        "put a value that contains a colon in quotes; align the line with its siblings.",
    )


def _code(line: str) -> str:
    return re.sub(r"(^|\s)#.*$", "", line).strip()


def _quote(lines: list[str], at: int) -> str:
    # Only the key: what follows the colon may be a secret.
    line = lines[at].strip() if at < len(lines) else ""
    key, colon, value = line.partition(":")
    shown = key + colon + (" ..." if value.strip() else "")
    return f'"{shown[:80]}"'
