"""Reading single values out of somebody else's JSON: what is not as it should be becomes a finding,
never a crash and never a guess."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

# No model comes near it; a larger number is a mistake or an attack on the arithmetic.
LARGEST = 10**15
_SHOWN = 80


@dataclass
class Fields:
    """The keys of one JSON object and what was found wrong with them.

    `subject` is the file's name in messages. `where` is put before a key ("text_config.").
    """

    values: Mapping[str, Any]
    host: str
    subject: str
    where: str = ""
    findings: list[Finding] = field(default_factory=list)

    def inside(self, key: str) -> Fields | None:
        """The object under `key`, sharing the findings; None where there is none."""
        found = self.values.get(key)
        if found is None:
            return None
        if not isinstance(found, dict):
            self.wrong(key, found, "an object")
            return None
        return Fields(found, self.host, self.subject, f"{self.where}{key}.", self.findings)

    def count(self, *keys: str, least: int = 1) -> int | None:
        """The first of `keys` that is present, as a whole number."""
        for key in keys:
            found = self.values.get(key)
            if found is None:
                continue
            whole = isinstance(found, int) or (isinstance(found, float) and found.is_integer())
            if isinstance(found, bool) or not whole or not least <= found <= LARGEST:
                self.wrong(key, found, f"a whole number, at least {least}")
                return None
            return int(found)
        return None

    def number(self, *keys: str) -> float | None:
        for key in keys:
            found = self.values.get(key)
            if found is None:
                continue
            if (
                isinstance(found, bool)
                or not isinstance(found, int | float)
                or not math.isfinite(found)
                or not 0 < found <= LARGEST
            ):
                self.wrong(key, found, "a number above 0")
                return None
            return float(found)
        return None

    def text(self, *keys: str) -> str | None:
        for key in keys:
            found = self.values.get(key)
            if found is None:
                continue
            if not isinstance(found, str):
                self.wrong(key, found, "text")
                return None
            return found
        return None

    def flag(self, key: str, default: bool = False) -> bool:
        found = self.values.get(key)
        if found is None:
            return default
        if not isinstance(found, bool):
            self.wrong(key, found, "true or false")
            return default
        return found

    def counts(self, key: str, least: int = 1) -> tuple[int, ...] | None:
        """A list of whole numbers."""
        found = self.values.get(key)
        if found is None:
            return None
        if not isinstance(found, list) or not all(
            isinstance(one, int) and not isinstance(one, bool) and least <= one <= LARGEST
            for one in found
        ):
            self.wrong(key, found, f"a list of whole numbers, each at least {least}")
            return None
        return tuple(found)

    def texts(self, key: str) -> tuple[str, ...] | None:
        found = self.values.get(key)
        if found is None:
            return None
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            self.wrong(key, found, "a list of names")
            return None
        return tuple(found)

    def wrong(self, key: str, found: object, wanted: str) -> None:
        self.findings.append(
            Finding(
                id="model.file-value",
                severity="warn",
                host=self.host,
                subject=self.subject,
                message=f"{self.where}{key} is not {wanted}, so the plan does without it.",
                fix="compare the file with the hub's; pull the model again if it differs.",
                evidence=f"{self.where}{key}: {shown(found)}",
            )
        )


def shown(value: object) -> str:
    """A value for a message: short, on one line, in plain characters."""
    text = ascii(value) if not isinstance(value, str) else ascii(value)[1:-1]
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def parse_json(text: str | bytes, subject: str, host: str) -> tuple[object, tuple[Finding, ...]]:
    """A file's text as JSON; None and a finding that refuses where it is none.

    `subject` is the file's name. A hub's error page and a file cut short are the usual cases.
    """
    try:
        return json.loads(text), ()
    except (ValueError, RecursionError) as error:
        start = text[:_SHOWN]
        plain = start.decode("utf-8", "replace") if isinstance(start, bytes) else start
        return None, (
            Finding(
                id="model.not-json",
                severity="refuse",
                host=host,
                subject=subject,
                message=f"{subject} is not JSON: {error}.",
                fix="pull the model again; if it stays so, look at what the hub sends under that "
                "name (an error page, a file cut short).",
                evidence=shown(plain) or "an empty file",
            ),
        )
