"""Every argument of `vllm serve` in the versions whose whole source was read: tables/vllm_serve.tsv
(made by locks/flag_table.py). What lies between two of them nobody has looked at.
"""

from __future__ import annotations

import difflib
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from packaging.version import Version

from pyinfra_deploy.planning import tables

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "vllm_serve.tsv"
ABSENT = "-"
# there, absent: read in this very version, or the same in the nearest ones on both sides.
# between: it came or went between two that were read. outside: older or newer than all of them.
Place = Literal["there", "absent", "between", "outside"]


@dataclass(frozen=True)
class Cell:
    """One argument in one version. `kind`: boolean, switch, value, values, optional, repeated.
    `default`: Python source text. `owner`: the argument of which it is another name."""

    kind: str
    type: str
    default: str
    deprecated: bool
    owner: str = ""


@dataclass(frozen=True)
class ServeFlags:
    """versions, oldest first; flags: name -> version -> cell, None where that has no such name."""

    versions: tuple[Version, ...]
    flags: Mapping[str, Mapping[Version, Cell | None]]
    source: str

    def names(self, version: Version) -> list[str]:
        """What a version takes, without the no- forms."""
        return [name for name, cells in self.flags.items() if cells[version] is not None]

    def as_flags(self, version: Version) -> dict[str, dict[str, Any]]:
        """As the host reads them of an installed vLLM; choices are not in the table."""
        found: dict[str, dict[str, Any]] = {}
        others: dict[str, list[str]] = {}
        for name, cells in self.flags.items():
            cell = cells[version]
            if cell is not None and cell.owner:
                others.setdefault(cell.owner, []).append(name)
            elif cell is not None:
                found[name] = {
                    "kind": cell.kind,
                    "type": cell.type,
                    "choices": None,
                    "default": cell.default,
                    "deprecated": "deprecated" if cell.deprecated else None,
                }
        return {name: {**flag, "aliases": others.get(name, [])} for name, flag in found.items()}

    def cell(self, argument: str, version: Version) -> Cell | None:
        """An argument as it is written (a part of it, its no- form) in a version of the table."""
        base = argument.split(".", 1)[0]
        found = self.flags.get(base, {}).get(version)
        if found is not None or not base.startswith("no-"):
            return found
        positive = self.flags.get(base.removeprefix("no-"), {}).get(version)
        return positive if positive is not None and positive.kind == "boolean" else None

    def place(self, argument: str, version: Version) -> Place:
        """Whether a version has an argument, as far as the table tells."""
        if version in self.versions:
            return "there" if self.cell(argument, version) is not None else "absent"
        older, newer = self.around(version)
        if older is None or newer is None:
            return "outside"
        seen = {self.cell(argument, one) is not None for one in (older, newer)}
        if len(seen) == 2:
            return "between"
        # Read on both sides and the same: one that went and came back in between was never seen.
        return "there" if seen == {True} else "absent"

    def around(self, version: Version) -> tuple[Version | None, Version | None]:
        """The nearest versions of the table on either side; the version itself for both."""
        older = [one for one in self.versions if one <= version]
        newer = [one for one in self.versions if one >= version]
        return (older[-1] if older else None, newer[0] if newer else None)

    def known_anywhere(self, argument: str) -> bool:
        return any(self.cell(argument, version) is not None for version in self.versions)

    def since(self, argument: str) -> str:
        """In words, from when on it is there; empty for one that the oldest version had."""
        had = [self.cell(argument, version) is not None for version in self.versions]
        if True not in had or had[0]:
            return ""
        first = had.index(True)
        return f"not yet in {self.versions[first - 1]}, there in {self.versions[first]}"

    def nearest(self, argument: str, version: Version) -> list[str]:
        """Names like it in the nearest version of the table, the nearest first."""
        older, newer = self.around(version)
        chosen = newer or older
        if chosen is None:
            return []
        base = argument.split(".", 1)[0]
        names = self.names(chosen)
        if base.startswith("no-"):
            names = [f"no-{name}" for name in names if self.flags[name][chosen]]
        return difflib.get_close_matches(base, names, 3, 0.75)


@functools.cache
def serve_flags() -> ServeFlags:
    """Raises TableError for a table that is not as locks/flag_table.py writes it."""
    return parse(tables.text_of(NAME))


def parse(text: str) -> ServeFlags:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    if not lines or not lines[0].startswith("argument\t"):
        raise tables.TableError(f"{NAME}: its first row must be: argument, then versions")
    versions = tuple(Version(word) for word in lines[0].split("\t")[1:])
    if list(versions) != sorted(set(versions)):
        raise tables.TableError(f"{NAME}: its versions must ascend")
    rows: dict[str, list[str]] = {}
    for line in lines[1:]:
        name, *cells = line.split("\t")
        if len(cells) != len(versions) or name in rows:
            raise tables.TableError(f"{NAME}: {name}: a cell for each version, and each name once")
        rows[name] = cells
    flags = {
        name: {version: _cell(name, index, rows) for index, version in enumerate(versions)}
        for name in rows
    }
    sources = [line.removeprefix("# source of ") for line in text.splitlines()
               if line.startswith("# source of ")]  # fmt: skip
    if len(sources) != len(versions):
        raise tables.TableError(f"{NAME}: every version needs its line `# source of VERSION: ...`")
    return ServeFlags(versions, flags, f"planning/tables/{NAME}")


def _cell(name: str, index: int, rows: Mapping[str, list[str]]) -> Cell | None:
    text = rows[name][index]
    if text == ABSENT:
        return None
    owner = ""
    if text.startswith("="):
        owner = text[1:]
        target = rows.get(owner)
        if target is None or target[index].startswith(("=", ABSENT)):
            raise tables.TableError(f"{NAME}: {name}: {text} names no argument of that version")
        text = target[index]
    what, _, default = text.partition(" ")
    kind, _, type_ = what.rstrip("!").partition(":")
    return Cell(kind, type_, default, what.endswith("!"), owner)
