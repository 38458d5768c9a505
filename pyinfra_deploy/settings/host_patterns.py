"""Host names in an inventory: ranges ("gpu[01:16]") and ports ("gpu01:2222").

Same rules as ansible-core 2.19, plugins/inventory/__init__.py expand_hostname_range and
parsing/utils/addresses.py parse_address; tests compare with the real one.
"""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING

from pyinfra_deploy.settings.host_names import wrong_name

if TYPE_CHECKING:
    from collections.abc import Iterable

_BRACKETED_PORT = re.compile(r"^\[(.+)\]:([0-9]{1,5})$")
_PORT = re.compile(r"^((?:[^:\[\]]|\[[^\]]*\])*):([0-9]{1,5})$")
_RANGE = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(r"^(?:[\w.-]|\[[^\[\]]*\])+$")
_IPV6 = re.compile(r"^[0-9a-fA-F:.]+$")

# More than one would ever own, fewer than would freeze the machine after a slip of a digit.
_MOST_HOSTS = 10_000


def expand(pattern: str) -> tuple[list[str], int | None]:
    """The host names that `pattern` stands for, and their port if it names one.

    Raises ValueError, with words for the operator, for what is neither name nor range.
    """
    port = None
    for form in (_BRACKETED_PORT, _PORT):
        if match := form.match(pattern):
            pattern, port = match[1], int(match[2])
    is_ipv6 = pattern.count(":") > 1 and _IPV6.match(_RANGE.sub("", pattern))
    if not is_ipv6 and not _NAME.match(pattern):
        raise ValueError("is not a host name, an address or a range of them such as gpu[01:16]")
    names = list(_expand_ranges(pattern))
    if not is_ipv6:
        for name in names:
            if wrong := wrong_name(name):
                raise ValueError(" ".join(wrong).rstrip("."))
    return names, port


def _expand_ranges(pattern: str) -> Iterable[str]:
    match = _RANGE.search(pattern)
    if match is None:
        return [pattern]
    tails = _expand_ranges(pattern[match.end() :])
    heads = [pattern[: match.start()] + item for item in _sequence(match[1])]
    names = [head + tail for head in heads for tail in tails]
    if len(names) > _MOST_HOSTS:
        raise ValueError(f"stands for more than {_MOST_HOSTS} hosts")
    return names


def _sequence(bounds: str) -> list[str]:
    parts = bounds.split(":")
    if len(parts) not in (2, 3):
        raise ValueError("has a range that is not [begin:end] or [begin:end:step]")
    begin, end = parts[0] or "0", parts[1]
    if not end:
        raise ValueError("has a range without an end")
    if len(begin) > 1 and begin[0] == "0" and len(begin) != len(end):
        raise ValueError("has a range whose begin and end differ in length: write [01:16]")
    width = len(begin) if len(begin) > 1 and begin[0] == "0" else 0
    try:
        step = int(parts[2]) if len(parts) == 3 else 1
        if step < 1:
            raise ValueError
        if begin in string.ascii_letters and end in string.ascii_letters:
            first, last = string.ascii_letters.index(begin), string.ascii_letters.index(end)
            items = list(string.ascii_letters[first : last + 1 : step])
        else:
            numbers = range(int(begin), int(end) + 1, step)
            if len(numbers) > _MOST_HOSTS:
                raise OverflowError
            items = [str(number).zfill(width) for number in numbers]
    except OverflowError:
        raise ValueError(f"stands for more than {_MOST_HOSTS} hosts") from None
    except ValueError:
        raise ValueError("has a range whose ends are not numbers or single letters") from None
    if not items:
        raise ValueError("has a range whose begin is after its end")
    return items
