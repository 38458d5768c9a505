"""What a YAML file's anchors and aliases (&name, *name) grow to, before anything is built of it.

Nine lines of anchors that name each other ten times stand for 10^9 values: PyYAML builds shared
lists of them at once, and whatever looks at each value afterwards never ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

# Values that all aliases of a file stand for together. A thousand hosts that share thirty
# variables by an alias are a third of it.
MOST_VALUES = 100_000
# Levels of mappings and lists in each other. vLLM's deepest arguments have less than ten.
MOST_LEVELS = 100

TOO_DEEP = (
    f"mappings and lists lie in each other more than {MOST_LEVELS} levels deep.",
    "write it flatter; look for a bracket that is never closed.",
)


@dataclass(eq=False)
class _Open:
    """A mapping or list whose end has not been seen. values: it and all in it, aliases expanded.
    height: levels in it."""

    anchor: str | None
    values: int = 1
    height: int = 1


def has_aliases(text: str) -> bool:
    """False where there can be none, which is nearly every file and saves a second parsing."""
    return "&" in text and "*" in text


def wrong_aliases(text: str, loader: Any) -> tuple[int, str, str] | None:
    """(1-based line, what is wrong, the fix) for the first alias that is too much, else None.

    `loader` parses into events. Raises yaml.YAMLError for what is not YAML.
    """
    # anchor -> (values, height); None while it is open, where an alias to it has no end.
    known: dict[str, tuple[int, int] | None] = {}
    stack: list[_Open] = []
    expanded = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.AliasEvent):
            line = 0 if event.start_mark is None else event.start_mark.line + 1
            if event.anchor not in known:
                continue  # The parser says so itself, with the line.
            found = known[event.anchor]
            if found is None:
                return (
                    line,
                    f"*{event.anchor} stands inside what &{event.anchor} names, and would contain "
                    "itself without end.",
                    "write the value itself in place of the alias.",
                )
            expanded += found[0]
            if expanded > MOST_VALUES:
                return (
                    line,
                    f"with *{event.anchor} the aliases of this file stand for more than "
                    f"{MOST_VALUES:,} values.",
                    "write the values themselves in place of aliases of aliases.",
                )
            if len(stack) + found[1] > MOST_LEVELS:
                return (line, *TOO_DEEP)
            _add(stack, *found)
        elif isinstance(event, yaml.CollectionStartEvent):
            stack.append(_Open(event.anchor))
            if event.anchor is not None:
                known[event.anchor] = None
        elif isinstance(event, yaml.CollectionEndEvent):
            done = stack.pop()
            if done.anchor is not None:
                known[done.anchor] = (done.values, done.height)
            _add(stack, done.values, done.height)
        elif isinstance(event, yaml.ScalarEvent):
            if event.anchor is not None:
                known[event.anchor] = (1, 0)
            _add(stack, 1, 0)
    return None


def _add(stack: list[_Open], values: int, height: int) -> None:
    if stack:
        stack[-1].values += values
        stack[-1].height = max(stack[-1].height, 1 + height)
