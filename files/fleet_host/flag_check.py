"""engine.args against the arguments that the installed vLLM defines (vllm_flags.py).

What vLLM does with a line of its YAML file is not what the line says in every case: `x: false` is
dropped without a word, an unambiguous abbreviation is taken, and of two names of one argument the
later wins (load_config_file() in vllm/utils/argparse_utils.py, 0.28.0 and 0.32.0).
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from typing import Any

# As near as max-num-seq is to max-num-seqs, or guided-decoding to structured-outputs is not.
NEAR = 0.7
NO_SUCH = "is not an argument of this vLLM."
# 16384, 16k, 25.6K, 1e-3, -1.
NUMBERS = {
    "int": re.compile(r"[+-]?\d[\d_]*(\.\d+)?[kKmMgGtT]?|auto|None|"),
    "float": re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?|inf|nan|None|"),
}


@dataclass(frozen=True)
class Wrong:
    """One argument that would stop the engine, or not do what it says."""

    key: str
    why: str
    fix: str
    # Of the name, not of the value: what a plugin adds looks like this.
    unknown: bool = False

    def __str__(self) -> str:
        return f"{self.key}: {self.why} {self.fix}"


def wrong_arguments(
    arguments: dict[str, Any], flags: dict[str, dict[str, Any]], advice: dict[str, str]
) -> list[Wrong]:
    """What is wrong with each argument. advice: argument -> what took its place, for those of which
    the control side knows."""
    found: list[Wrong] = []
    set_by: dict[str, str] = {}
    for key, value in arguments.items():
        name = owner_of(key, flags)
        if name is None:
            found.append(_unknown(key, flags, advice))
            continue
        if "." not in key and (earlier := set_by.setdefault(name, key)) != key:
            found.append(
                Wrong(key, f"sets the same as {earlier}, and the later wins.", "Remove one.")
            )
            continue
        problem = _wrong_value(key, value, name, flags[name])
        if problem is not None:
            found.append(Wrong(key, *problem))
    return found


def deprecated_arguments(
    arguments: dict[str, Any], flags: dict[str, dict[str, Any]]
) -> list[tuple[str, str]]:
    """(argument, what vLLM says of it) for each that is on its way out."""
    owners = {key: owner_of(key, flags) for key in arguments}
    return [
        (key, str(flags[name]["deprecated"]))
        for key, name in owners.items()
        if name is not None and flags[name].get("deprecated")
    ]


def owner_of(key: str, flags: dict[str, dict[str, Any]]) -> str | None:
    """The argument that a key of the file sets; None when there is none of that name."""
    base = key.split(".", 1)[0]
    positive = base.removeprefix("no-")
    for name, entry in flags.items():
        names = (name, *entry["aliases"])
        if base in names:
            return name
        if base != positive and entry["kind"] == "boolean" and positive in names:
            return name
    return None


def spellings(flags: dict[str, dict[str, Any]]) -> list[str]:
    """Every name that vLLM takes, without leading dashes."""
    names: list[str] = []
    for name, entry in flags.items():
        for one in (name, *entry["aliases"]):
            names += [one, f"no-{one}"] if entry["kind"] == "boolean" else [one]
    return names


def _unknown(key: str, flags: dict[str, dict[str, Any]], advice: dict[str, str]) -> Wrong:
    base = key.split(".", 1)[0]
    if base in advice:
        return Wrong(key, NO_SUCH, advice[base])
    positive = base.removeprefix("no-")
    if base != positive and owner_of(positive, flags) is not None:
        return Wrong(
            key,
            f"is not an argument of this vLLM: {positive} is off unless it is set.",
            "Remove the line.",
        )
    known = spellings(flags)
    longer = [name for name in known if name.startswith(base)]
    if len(longer) == 1:
        return Wrong(
            key,
            f"is {longer[0]} cut short, which vLLM takes until another argument begins like it.",
            f"Write {longer[0]}.",
        )
    near = difflib.get_close_matches(base, known, 3, NEAR)
    if near:
        return Wrong(key, NO_SUCH, f"Nearest: {', '.join(near)}.", unknown=True)
    return Wrong(
        key,
        "is not an argument of this vLLM, and no name of it is near.",
        "Look in its help: fleet runtime flags.",
        unknown=True,
    )


def _wrong_value(key: str, value: Any, name: str, entry: dict[str, Any]) -> tuple[str, str] | None:
    kind, wanted = entry["kind"], entry["type"]
    if "." in key:
        if kind == "value" and wanted in ("json", "json-or-text", None):
            return None
        return (f"{name} takes no parts.", f"Write {name} with its value.")
    if value is False:
        opposite = f"Write no-{name}: true." if kind == "boolean" else "Remove the line."
        return ("false is dropped without a word.", opposite)
    if value == []:
        return ("an empty list is dropped without a word.", "Remove the line.")
    if kind in ("boolean", "switch"):
        return None if value is True else ("takes no value.", f"Write {key}: true, or remove it.")
    if value is True:
        return None if kind == "optional" else ("needs a value.", f"Give it, or remove {key}.")
    if isinstance(value, list):
        if kind != "values" and len(value) > 1:
            return ("takes one value.", "Write one.")
        return _first([_wrong_text(str(item), entry) for item in value])
    text = json.dumps(value) if isinstance(value, dict) else str(value)
    return _wrong_text(text, entry)


def _first(found: list[tuple[str, str] | None]) -> tuple[str, str] | None:
    return next((one for one in found if one is not None), None)


def _wrong_text(text: str, entry: dict[str, Any]) -> tuple[str, str] | None:
    wanted, choices = entry["type"], entry["choices"]
    if wanted is None:
        return None  # vLLM converts it in a way of its own before it looks
    if choices is not None and text not in (*choices, "None"):
        near = difflib.get_close_matches(text, choices, 1, 0.6)
        hint = f"Nearest: {near[0]}." if near else "Write one of these."
        return (f"{text!r} is none of {', '.join(choices)}.", hint)
    if wanted in NUMBERS and not NUMBERS[wanted].fullmatch(text):
        return (f"{text!r} is no number.", "Write a number.")
    if wanted == "json" and not _is_structure(text):
        return (f"{text[:60]!r} is no JSON.", "Write a mapping, or JSON in single quotes.")
    return None


def _is_structure(text: str) -> bool:
    if text in ("", "None"):
        return True
    # 80m and the like inside it are vLLM's own, and no JSON.
    plain = re.sub(r"\b(\d+)(\.\d+)?[kKmMgGtT]\b", r"\1", text)
    try:
        json.loads(plain)
    except ValueError:
        return False
    return True
