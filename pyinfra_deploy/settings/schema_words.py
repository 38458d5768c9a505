"""The schema in words: what a key may be, and an example, for messages and documentation."""

from __future__ import annotations

import datetime
import json
import re
import types
import typing
from typing import Any, Literal

import yaml
from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from pyinfra_deploy.settings.kinds import Words
from pyinfra_deploy.settings.secret import Secret
from pyinfra_deploy.settings.section import Section

if typing.TYPE_CHECKING:
    from collections.abc import Iterator


def section_of(info: FieldInfo) -> type[Section] | None:
    """The section a field holds, for `Section` and `Section | None`; None for other fields."""
    if typing.get_origin(info.annotation) is tuple:
        return None
    for part in (info.annotation, *typing.get_args(info.annotation)):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def item_section_of(info: FieldInfo) -> type[Section] | None:
    """The section that each item of a list holds; None for other fields."""
    bare = _bare(info.annotation)
    if typing.get_origin(bare) is not tuple:
        return None
    item = typing.get_args(bare)[0]
    return item if isinstance(item, type) and issubclass(item, Section) else None


def allowed_words(info: FieldInfo) -> str:
    """What may be written, as the end of a sentence: "a whole number, 1 to 65535"."""
    words = _words(info.annotation, list(info.metadata))
    if type(None) in typing.get_args(info.annotation) and section_of(info) is None:
        return f"{words}; or null"
    return words


def item_words(info: FieldInfo) -> str:
    """What one item of a list, or one value of a mapping, may be."""
    bare = _bare(info.annotation)
    item = typing.get_args(bare)[0 if typing.get_origin(bare) is tuple else 1]
    return _words(item, [])


def example_of(info: FieldInfo | None) -> str:
    """An example as it is written in YAML, on one line."""
    if info is None or not info.examples:
        return ""
    return as_yaml(info.examples[0])


def as_yaml(value: Any) -> str:
    """A value on one line of YAML, text in quotes only where YAML needs them."""
    match value:
        case None:
            return "null"
        case Section():
            return "{}"
        case datetime.date():
            return value.isoformat()
        case str():
            plain = re.fullmatch(r"[A-Za-z/][\w./:+-]*[\w/]|[A-Za-z/]", value)
            return value if plain and yaml.safe_load(value) == value else json.dumps(value)
        case dict():
            return "{" + ", ".join(f"{k}: {as_yaml(v)}" for k, v in value.items()) + "}"
        case list() | tuple():
            items = (item.to_json() if isinstance(item, Section) else item for item in value)
            return "[" + ", ".join(map(as_yaml, items)) + "]"
        case _:
            return json.dumps(value)


def _words(annotation: Any, metadata: list[Any]) -> str:
    for mark in _marks(annotation, metadata):
        if isinstance(mark, Words) and typing.get_origin(_bare(annotation)) is not tuple:
            return mark.allowed
    bare = _bare(annotation)
    origin = typing.get_origin(bare)
    if origin is Literal:
        return _either([str(choice) for choice in typing.get_args(bare)])
    if origin is tuple:
        item = typing.get_args(bare)[0]
        return f"a list, each item {_words(item, [])}"
    if origin is dict:
        item = typing.get_args(bare)[1]
        return "a mapping" if item is Any else f"a mapping, each value {_words(item, [])}"
    if bare is bool:
        return "true or false"
    if bare is datetime.date:
        return "a date as YYYY-MM-DD, without quotes"
    if bare is int:
        return "a whole number" + _limits(_marks(annotation, metadata))
    if bare is float:
        return "a number" + _limits(_marks(annotation, metadata))
    if bare is Secret:
        return "a secret: a !vault value or \"{{ lookup('env', 'NAME') }}\""
    if isinstance(bare, type) and issubclass(bare, Section):
        return "a mapping with " + ", ".join(bare.model_fields)
    return "text"


def _bare(annotation: Any) -> Any:
    """The type without Annotated and without `| None`."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _bare(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        rest = [part for part in typing.get_args(annotation) if part is not type(None)]
        return _bare(rest[0])
    return annotation


def _marks(annotation: Any, metadata: list[Any]) -> Iterator[Any]:
    yield from _flat(metadata)
    if typing.get_origin(annotation) is typing.Annotated:
        base, *marks = typing.get_args(annotation)
        yield from _flat(marks)
        yield from _marks(base, [])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from _marks(part, [])


def _flat(marks: list[Any]) -> Iterator[Any]:
    for mark in marks:
        if isinstance(mark, FieldInfo):
            yield from mark.metadata
        else:
            yield mark


def _limits(marks: Iterator[Any]) -> str:
    least = most = None
    for mark in marks:
        least = mark.ge if isinstance(mark, Ge) else least
        most = mark.le if isinstance(mark, Le) else most
    if least is None or most is None:
        return ""
    return f", {least} to {most}"


def _either(choices: list[str]) -> str:
    if len(choices) == 1:
        return choices[0]
    return f"{', '.join(choices[:-1])} or {choices[-1]}"
