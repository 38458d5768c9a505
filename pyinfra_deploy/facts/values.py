"""Single values as nvidia-smi prints them: numbers with units, flags, and words for "not known"."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Literal

# Words of nvidia-smi in place of a value that the card or the driver does not have, in brackets in
# CSV and without in XML. Anything else that is no value is reported, never taken for "no value".
_ABSENT = frozenset(
    {
        "",
        "n/a",
        "none",
        "not supported",
        "unknown",
        "not available",
        "requested functionality has been deprecated",
    }
)
_LOST = re.compile(r"gpu is lost|fallen off the bus", re.IGNORECASE)
_NUMBER = re.compile(r"(-?[0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z%/]*)")
_PCI = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?")


class Doubts:
    """Values that were neither read nor absent, each with the place where it stood."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self.lost: list[str] = []

    def add(self, where: str, value: str) -> None:
        self.found.append((where, f"says {value[:80]!r}, which is no value for it"))
        if _LOST.search(value):
            self.lost.append(where)


def digits(text: str | None) -> int | None:
    """A number of digits alone, up to the longest that any output has; None for anything else."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else None


# Cards of a host say mostly the same: caches make a plan for a hundred hosts quick.
@lru_cache(maxsize=4096)
def is_absent(text: str | None) -> bool:
    """Whether nvidia-smi says in one of its words that there is no such value."""
    return text is None or text.strip().strip("[]").lower() in _ABSENT


def number(text: str | None, units: tuple[str, ...], where: str, doubts: Doubts) -> float | None:
    """ "46068 MiB" with units ("MiB",) is 46068.0; a number without unit is taken too."""
    value = number_in(text, units)
    if value is UNCLEAR:
        doubts.add(where, str(text))
        return None
    return value


def whole(text: str | None, units: tuple[str, ...], where: str, doubts: Doubts) -> int | None:
    """As `number`, for values that have no fraction."""
    value = whole_in(text, units)
    if value is UNCLEAR:
        doubts.add(where, str(text))
        return None
    return value


def flag(
    text: str | None, yes: tuple[str, ...], no: tuple[str, ...], where: str, doubts: Doubts
) -> bool | None:
    """True or False for the given words; None where nvidia-smi has no answer."""
    value = flag_in(text, yes, no)
    if value is UNCLEAR:
        doubts.add(where, str(text))
        return None
    return value


class Unclear(Enum):
    """What is there, and is no value of its kind."""

    UNCLEAR = "unclear"


UNCLEAR = Unclear.UNCLEAR


# The same without a place to complain at: for whoever reads many values, most of them clear.
@lru_cache(maxsize=4096)
def number_in(text: str | None, units: tuple[str, ...]) -> float | Literal[Unclear.UNCLEAR] | None:
    if text is None or is_absent(text):
        return None
    match = _NUMBER.fullmatch(text.strip())
    if match is None or (match.group(2) and match.group(2) not in units):
        return UNCLEAR
    return float(match.group(1))


@lru_cache(maxsize=4096)
def whole_in(text: str | None, units: tuple[str, ...]) -> int | Literal[Unclear.UNCLEAR] | None:
    value = number_in(text, units)
    if value is None or value is UNCLEAR:
        return value
    return int(value) if value == int(value) else UNCLEAR


@lru_cache(maxsize=4096)
def flag_in(
    text: str | None, yes: tuple[str, ...], no: tuple[str, ...]
) -> bool | Literal[Unclear.UNCLEAR] | None:
    if text is None or is_absent(text):
        return None
    word = text.strip().strip("[]")
    return word in yes if word in yes or word in no else UNCLEAR


def words(text: str | None, where: str, doubts: Doubts) -> str | None:
    """Free text such as a name; an error message in its place is a doubt."""
    if text is None or is_absent(text):
        return None
    if _LOST.search(text) or "unknown error" in text.lower():
        doubts.add(where, text)
        return None
    return text.strip()


def pci_address(text: str | None) -> str | None:
    """The first PCI address in the text as sysfs writes it: "00000000:3B:00.0", "PCI:0000:3b:00"
    and "GPU0000:3B:00.0" are "0000:3b:00.0". None without one."""
    match = _PCI.search(text or "")
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}.{function or 0}"
