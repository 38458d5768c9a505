"""Typed reading of a job's spec: a wrong or unknown key is the caller's mistake (SpecError)."""

from __future__ import annotations

from typing import Any

from .errors import SpecError

_REQUIRED = object()


def refuse_unknown(spec: dict[str, Any], known: set[str], job: str) -> None:
    """A key that nobody reads is a wish that would silently not be granted."""
    unknown = sorted(set(spec) - known)
    if unknown:
        raise SpecError(
            f"the {job} spec has unknown keys: {', '.join(unknown)}",
            "this program would ignore them.",
            f"Known keys: {', '.join(sorted(known))}.",
        )


def _value(
    spec: dict[str, Any], key: str, kinds: tuple[type, ...], wanted: str, default: Any
) -> Any:
    value = spec.get(key)
    if value is None:
        if default is _REQUIRED:
            raise SpecError(f"the spec lacks '{key}'", f"it must be {wanted}.", f"Give '{key}'.")
        return default
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise SpecError(f"the spec's '{key}' is {value!r}", f"it must be {wanted}.", "Correct it.")
    return value


def text(spec: dict[str, Any], key: str, default: Any = _REQUIRED) -> str:
    value: str = _value(spec, key, (str,), "a text", default)
    return value


def optional_text(spec: dict[str, Any], key: str) -> str | None:
    value: str | None = _value(spec, key, (str,), "a text or null", None)
    return value or None


def whole(spec: dict[str, Any], key: str, default: Any = _REQUIRED) -> int:
    """A whole number of at least 0."""
    value: int = _value(spec, key, (int,), "a whole number", default)
    if value is not None and value < 0:
        raise SpecError(f"the spec's '{key}' is {value}", "it must not be negative.", "Correct it.")
    return value


def seconds(spec: dict[str, Any], key: str, default: Any = _REQUIRED) -> float:
    """A number of seconds above 0."""
    value = float(_value(spec, key, (int, float), "a number of seconds", default))
    if value <= 0:
        raise SpecError(f"the spec's '{key}' is {value}", "it must be above 0.", "Correct it.")
    return value


def texts(spec: dict[str, Any], key: str) -> list[str]:
    """A list of texts; absent or null is empty."""
    values: list[str] = _value(spec, key, (list,), "a list of texts", [])
    if not all(isinstance(value, str) for value in values):
        raise SpecError(f"the spec's '{key}' is {values!r}", "it must hold texts.", "Correct it.")
    return list(values)


def text_map(spec: dict[str, Any], key: str) -> dict[str, str]:
    """A mapping of texts to texts; absent or null is empty."""
    values: dict[str, str] = _value(spec, key, (dict,), "a mapping of texts", {})
    if not all(isinstance(value, str) for value in values.values()):
        raise SpecError(f"the spec's '{key}' is {values!r}", "it must hold texts.", "Correct it.")
    return dict(values)
