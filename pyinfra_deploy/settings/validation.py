"""One host's variables -> Settings, or what is wrong with them, in file, line and key."""

from __future__ import annotations

import difflib
import typing
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from pyinfra_deploy.settings.kinds import WRONG
from pyinfra_deploy.settings.problems import Problem, describe
from pyinfra_deploy.settings.schema import Settings
from pyinfra_deploy.settings.schema_words import (
    allowed_words,
    example_of,
    item_section_of,
    item_words,
    section_of,
)
from pyinfra_deploy.settings.secret import (
    Secret,
    environment_name,
    environment_secret,
    plain_secret,
)

if typing.TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic.fields import FieldInfo

    from pyinfra_deploy.settings.inventory_file import Located
    from pyinfra_deploy.settings.section import Section

OURS = tuple(Settings.model_fields)
_TEMPLATE = ("{{", "{%", "{#")

ErrorDetails = dict[str, Any]


@dataclass(eq=False)
class Outcome:
    """settings: None when there are problems. sound: only the sections without a problem, so that
    the others can still be judged. Nothing here names a host yet."""

    settings: Settings | None = None
    sound: Settings = field(default_factory=Settings)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def validate(ours: dict[str, Located]) -> Outcome:
    """`ours`: the variables that are settings, by their top-level name."""
    outcome = Outcome()
    values = {name: _plain(located, outcome) for name, located in ours.items()}
    refused = {problem.key_path for problem in outcome.problems}
    wrong = {path.split(".")[0] for path in refused}
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            wrong.add(str(details["loc"][0]))
            outcome.problems += [
                problem
                for problem in _translate(ours, values, dict(details))
                if problem.key_path not in refused
            ]
        settings = Settings.model_validate({k: v for k, v in values.items() if k not in wrong})
    outcome.settings = None if outcome.problems else settings
    outcome.sound = settings
    return outcome


def problem_at(
    ours: dict[str, Located],
    keys: Sequence[object],
    message: str,
    fix: str,
    found: str | None = None,
) -> Problem:
    """A problem at a key of ours: its file and line, or those of what would contain it."""
    path = ".".join(map(str, keys))
    located = ours.get(str(keys[0]))
    if located is None:
        return Problem("group_vars", None, path, None, found, message, fix)
    file, line = located.document.shown, located.line(*keys[1:])
    return Problem(file, line, path, None, found, message, fix)


def _plain(
    located: Located, outcome: Outcome, value: Any = None, below: tuple[Any, ...] = ()
) -> Any:
    """The value with its secrets wrapped; templates and misplaced vault values are problems."""
    if not below:
        value = located.value
    name = str(located.keys[-1])
    keys = (name, *below)
    if isinstance(value, dict):
        return {k: _plain(located, outcome, v, (*below, k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(located, outcome, v, (*below, n)) for n, v in enumerate(value)]
    if not isinstance(value, str | Secret):
        return value
    place = {name: located}
    if _is_secret(keys):
        return _secret(place, keys, value, outcome)
    if isinstance(value, Secret):
        outcome.problems.append(
            problem_at(
                place,
                keys,
                "is a vault value, but this setting is not a secret.",
                "write it in plain text, or encrypt the whole file with ansible-vault encrypt.",
            )
        )
    elif any(mark in value for mark in _TEMPLATE):
        outcome.problems.append(
            problem_at(
                place,
                keys,
                "templates are not evaluated in settings: what a host runs is decided before the "
                "first connection, from what is written in the files.",
                "write the value itself; only a secret may be \"{{ lookup('env', 'NAME') }}\".",
                describe(value),
            )
        )
    return value


def _is_secret(keys: Sequence[object]) -> bool:
    info = _exactly(keys)
    return info is not None and Secret in typing.get_args(info.annotation)


def _secret(
    place: dict[str, Located], keys: Sequence[object], value: str | Secret, outcome: Outcome
) -> Secret | str:
    if isinstance(value, Secret):
        return value
    located = place[str(keys[0])]
    line = located.line(*keys[1:])
    if name := environment_name(value):
        path = ".".join(map(str, keys))
        return environment_secret(name, located.document.shown, line, path)
    if any(mark in value for mark in _TEMPLATE):
        outcome.problems.append(
            problem_at(
                place,
                keys,
                "of templates only the exact form {{ lookup('env', 'NAME') }} is read here.",
                "write \"{{ lookup('env', 'NAME') }}\", or encrypt the value with ansible-vault "
                "encrypt_string.",
            )
        )
        return value
    if not located.document.encrypted:
        outcome.warnings.append(
            problem_at(
                place,
                keys,
                "is a secret in plain text, in a file that goes into the repository.",
                "encrypt it: ansible-vault encrypt_string; and replace it at its issuer.",
            )
        )
    return plain_secret(value)


def _translate(
    ours: dict[str, Located], values: dict[str, Any], details: ErrorDetails
) -> list[Problem]:
    keys = tuple(details["loc"])
    if keys and keys[-1] == "[key]":
        quoted = f'put it in quotes: "{keys[-2]}"'
        return [problem_at(ours, keys[:-1], "a key here is text.", quoted, describe(keys[-2]))]
    info = _field(keys)
    kind = details["type"]
    if kind == "missing":
        return [_missing(ours, keys, info)]
    if kind == "extra_forbidden":
        return [_unknown(ours, keys)]
    found = None if _is_secret(keys) else describe(details.get("input"))
    if kind == WRONG and "each" in details["ctx"]:
        # What is refused of an environment may be refused for being a secret.
        secret = keys[:2] == ("engine", "env")
        return [
            problem_at(
                ours,
                (*keys, key),
                message,
                fix,
                None if secret else describe(_at(values, (*keys, key))),
            )
            for key, (message, fix) in details["ctx"]["each"].items()
        ]
    example = example_of(info)
    if kind == WRONG:
        fix = details["ctx"]["fix"] or (f"for example {example}" if example else "")
        return [problem_at(ours, keys, details["ctx"]["message"], fix, found)]
    allowed = _allowed(info, keys, str(details["msg"]))
    return [problem_at(ours, keys, f"must be {allowed}.", _fix(kind, details, example), found)]


def _allowed(info: FieldInfo | None, keys: Sequence[object], otherwise: str) -> str:
    if info is None:
        return otherwise
    return allowed_words(info) if info is _exactly(keys) else item_words(info)


def _exactly(keys: Sequence[object]) -> FieldInfo | None:
    """The schema's field exactly at `keys`; None inside a list or a free mapping."""
    section = _section(keys[:-1])
    return section.model_fields.get(str(keys[-1])) if section else None


def _fix(kind: str, details: ErrorDetails, example: str) -> str:
    value = details.get("input")
    if kind == "string_type" and isinstance(value, int | float) and not isinstance(value, bool):
        return f'put it in quotes: "{value}" (without them 3.10 is the number 3.1).'
    if kind == "int_type" and isinstance(value, str) and value.strip().isdigit():
        return f"remove the quotes: {value.strip()}"
    if kind == "bool_type":
        return "write true or false, without quotes."
    if kind == "tuple_type":
        return f"write a list: {example}" if example else "write a list."
    return f"for example {example}" if example else ""


def _missing(ours: dict[str, Located], keys: Sequence[object], info: FieldInfo | None) -> Problem:
    example = example_of(info)
    return problem_at(
        ours,
        keys,
        f"is missing; it must be {allowed_words(info)}." if info else "is missing.",
        f"add under {_named(keys[:-1])}:  {keys[-1]}: {example}"
        if len(keys) > 1
        else f"add {keys[-1]}.",
    )


def _named(keys: Sequence[object]) -> object:
    """The key that the last of `keys` stands under, for "add under ...": items have no name."""
    last = keys[-1]
    return f"item {last + 1} of {keys[-2]}" if isinstance(last, int) else last


def _unknown(ours: dict[str, Located], keys: Sequence[object]) -> Problem:
    parent, name = keys[:-1], str(keys[-1])
    section = _section(parent) or Settings
    close = difflib.get_close_matches(name.replace("-", "_"), section.model_fields, 1, 0.6)
    elsewhere = [
        f"{top}.{name}"
        for top in Settings.model_fields
        if (other := _section((top,))) and name in other.model_fields
    ]
    where = ".".join(map(str, parent))
    if close:
        fix = f'did you mean "{close[0]}"?'
    elif elsewhere:
        fix = f"did you mean {' or '.join(elsewhere)}?"
    else:
        fix = f"{where} knows: {', '.join(section.model_fields)}"
    return problem_at(ours, keys, f'there is no setting "{name}" in {where}.', fix)


def _section(keys: Sequence[object]) -> type[Section] | None:
    """The section at `keys`, also that of an item of a list; None where there is none."""
    section: type[Section] | None = Settings
    info: FieldInfo | None = None
    for key in keys:
        section, info = _step(section, info, key)
    return section


def _step(
    section: type[Section] | None, info: FieldInfo | None, key: object
) -> tuple[type[Section] | None, FieldInfo | None]:
    if isinstance(key, int):
        return (item_section_of(info) if info else None), None
    info = section.model_fields.get(str(key)) if section else None
    return (section_of(info) if info else None), info


def _field(keys: Sequence[object]) -> FieldInfo | None:
    """The schema's field at, or (inside a list or free mapping) nearest above, `keys`."""
    section: type[Section] | None = Settings
    info: FieldInfo | None = None
    nearest: FieldInfo | None = None
    for key in keys:
        section, info = _step(section, info, key)
        nearest = info or nearest
    return nearest


def _at(values: Any, keys: Sequence[object]) -> Any:
    for key in keys:
        values = values[key]
    return values
