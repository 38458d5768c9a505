"""Strict reading of a JSON object: every field is asked for by name and kind, no other may be."""

from __future__ import annotations

import math
from typing import Any


class ConfigError(Exception):
    """A document that cannot be used. The text says where and what."""


def object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json.loads: a field that occurs twice is refused."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a field appears twice in one object")
    return document


class Fields:
    """One object of the document. Each method raises ConfigError with the field's place.

    A default of None means that the field is required; null counts as left out.
    """

    def __init__(self, document: Any, where: str) -> None:
        if not isinstance(document, dict):
            raise ConfigError(f"{where or 'the outermost value'} must be an object")
        self._document: dict[str, Any] = document
        self._where = where
        self._asked: set[str] = set()

    def at(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def has(self, name: str) -> bool:
        self._asked.add(name)
        return self._document.get(name) is not None

    def done(self) -> None:
        """Call when all was asked for: what is left is not known."""
        unknown = sorted(set(self._document) - self._asked)
        if unknown:
            raise ConfigError(f"{self.at(unknown[0])} is not known to this version of the service")

    def _get(self, name: str, default: Any, kind: str) -> Any:
        if not self.has(name):
            if default is None:
                raise ConfigError(f"{self.at(name)} is missing: it must be {kind}")
            return default
        return self._document[name]

    def text(self, name: str, default: str | None) -> str:
        value = self._get(name, default, "text")
        if not isinstance(value, str) or not value or not value.isprintable():
            raise ConfigError(f"{self.at(name)} must be one line of text")
        return value

    def optional_text(self, name: str) -> str | None:
        return self.text(name, None) if self.has(name) else None

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._get(name, None, "a list of texts")
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise ConfigError(f"{self.at(name)} must be a list of texts")
        return tuple(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default, "true or false")
        if not isinstance(value, bool):
            raise ConfigError(f"{self.at(name)} must be true or false")
        return value

    def signed(self, name: str, default: int | None) -> int:
        value = self._get(name, default, "a whole number")
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{self.at(name)} must be a whole number")
        return value

    def whole(self, name: str, default: int | None, least: int = 0) -> int:
        value = self.signed(name, default)
        if value < least:
            raise ConfigError(f"{self.at(name)} must be {least} or more")
        return value

    def at_least(self, name: str, default: float | None, least: float) -> float:
        value = self._get(name, default, "a number")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"{self.at(name)} must be a number")
        if not math.isfinite(value) or value < least:
            raise ConfigError(f"{self.at(name)} must be {least:g} or more")
        return float(value)

    def positive(self, name: str, default: float | None) -> float:
        value = self.at_least(name, default, 0)
        if value == 0:
            raise ConfigError(f"{self.at(name)} must be more than 0")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._get(name, {}, "an object")
        if not isinstance(value, dict):
            raise ConfigError(f"{self.at(name)} must be an object")
        return value

    def names(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """The names of an object's fields."""
        return tuple(self.mapping(name)) if self.has(name) else default

    def part(self, name: str) -> Fields:
        return Fields(self.mapping(name), self.at(name))

    def objects(self, name: str) -> list[Fields]:
        value = self._get(name, None, "a list of objects")
        if not isinstance(value, list):
            raise ConfigError(f"{self.at(name)} must be a list of objects")
        return [Fields(one, f"{self.at(name)}[{index}]") for index, one in enumerate(value)]
