"""What differs between the arguments of two vLLM versions, and what of it touches engine.args.

Flags are as files/fleet_host/vllm_flags.py reads them: name -> {aliases, kind, type, choices,
default, deprecated}.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Flags = Mapping[str, Mapping[str, Any]]

FEW = 12
WIDTH = 110


@dataclass(frozen=True)
class Difference:
    """yours: lines on arguments that are set. new, gone: names. defaults, forms: name -> (before,
    after). deprecated: names on their way out that were not before."""

    yours: tuple[str, ...]
    new: tuple[str, ...]
    gone: tuple[str, ...]
    defaults: Mapping[str, tuple[str, str]]
    forms: Mapping[str, tuple[str, str]]
    deprecated: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not (self.new or self.gone or self.defaults or self.forms or self.deprecated)


def difference(before: Flags, after: Flags, arguments: Iterable[str] = ()) -> Difference:
    """arguments: keys of engine.args."""
    both = [name for name in before if name in after]
    gone = tuple(name for name in before if name not in after and not _renamed(name, after))
    defaults = {
        name: (str(before[name]["default"]), str(after[name]["default"]))
        for name in both
        if before[name]["default"] != after[name]["default"]
    }
    forms = {
        name: (form(before[name]), form(after[name]))
        for name in both
        if _written_otherwise(before[name], after[name])
    }
    deprecated = tuple(
        name
        for name in after
        if after[name].get("deprecated") and not before.get(name, {}).get("deprecated")
    )
    found = Difference(
        (), tuple(name for name in after if name not in before), gone, defaults, forms, deprecated
    )
    yours = [
        line for key in arguments for line in _about(key, found, _owner(key, before), before, after)
    ]
    return Difference(
        tuple(yours), found.new, found.gone, found.defaults, found.forms, found.deprecated
    )


def form(flag: Mapping[str, Any]) -> str:
    """How an argument is written, in words."""
    kind = {
        "boolean": "on or off",
        "switch": "on",
        "value": "a value",
        "values": "one or more values",
        "optional": "with or without a value",
        "repeated": "a value, more than once",
    }.get(str(flag["kind"]), str(flag["kind"]))
    if flag["kind"] in ("boolean", "switch"):
        return kind
    choices = flag.get("choices")
    if choices:
        return f"{kind}: {', '.join(map(str, choices))}"
    return f"{kind} ({flag['type']})" if flag.get("type") else kind


def _written_otherwise(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    if (before["kind"], before["type"]) != (after["kind"], after["type"]):
        return True
    old, new = before.get("choices"), after.get("choices")
    # Where a list could not be read, it is not known whether it is another.
    return bool(old and new and old != new)


def _renamed(name: str, after: Flags) -> bool:
    return any(name in flag["aliases"] for flag in after.values())


def _owner(key: str, flags: Flags) -> str:
    """The argument that a key of engine.args sets."""
    base = key.split(".", 1)[0]
    for name in (base, base.removeprefix("no-")):
        if name in flags:
            return name
        for owner, flag in flags.items():
            if name in flag["aliases"]:
                return owner
    return base


def _about(key: str, found: Difference, name: str, before: Flags, after: Flags) -> Iterable[str]:
    if name in found.gone:
        yield f"{key} is gone"
    if name in found.forms:
        yield f"{key}: {_choices_in_words(before[name], after[name])}"
    if name in found.deprecated:
        yield f"{key} is on its way out: {after[name]['deprecated']}"


def _choices_in_words(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    old, new = set(before.get("choices") or ()), set(after.get("choices") or ())
    if not old or not new or before["kind"] != after["kind"]:
        return f"was {form(before)}, is {form(after)}"
    parts = [f"no more {', '.join(sorted(old - new))}"] if old - new else []
    parts += [f"new: {', '.join(sorted(new - old))}"] if new - old else []
    return "; ".join(parts)


def in_few_lines(found: Difference, before: str, after: str, whole: str) -> list[str]:
    """For a deploy's output. `whole`: the command that shows all of it."""
    head = (
        f"vLLM {before} to {after}: {_count(found.new, 'new argument')}, {len(found.gone)} gone, "
        f"{_count(found.defaults, 'other default')}, {_count(found.forms, 'other form')}"
    )
    lines = [head]
    lines += [f"  in engine.args: {line}" for line in found.yours]
    if not found.yours and not found.is_empty:
        lines.append("  in engine.args: nothing of it")
    lines += _folded("gone", found.gone)
    lines += _folded("other default", [f"{n} {a} -> {b}" for n, (a, b) in found.defaults.items()])
    lines += _folded("on its way out", found.deprecated)
    lines += _folded("new", found.new)
    return [*lines, f"  all of it: {whole}"] if not found.is_empty else lines


def in_full(found: Difference, after: Flags) -> list[str]:
    """Every single difference, a line each."""
    lines = [f"engine.args: {line}" for line in found.yours]
    lines += [f"gone: {name}" for name in found.gone]
    lines += [f"new: {n} ({form(after[n])}, default {after[n]['default']})" for n in found.new]
    lines += [f"default: {name}: {a} -> {b}" for name, (a, b) in found.defaults.items()]
    lines += [f"form: {name}: {a} -> {b}" for name, (a, b) in found.forms.items()]
    return lines + [f"on its way out: {n}: {after[n]['deprecated']}" for n in found.deprecated]


def _count(things: Any, name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _folded(label: str, items: Iterable[str]) -> list[str]:
    every = list(items)
    if not every:
        return []
    shown = ", ".join(every[:FEW]) + (f" and {len(every) - FEW} more" if len(every) > FEW else "")
    return textwrap.wrap(f"  {label}: {shown}", WIDTH, subsequent_indent="    ",
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip
