"""The key "conda" of an environment's spec, checked: which conda, what lock, whose consent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from . import fields
from .errors import SpecError

KEYS = {"program", "lock", "channels", "terms"}
TERMS_KEYS = {"accepted_by", "accepted_on", "channels"}
# A line of an explicit file (CEP 23), with its SHA-256.
LINE = re.compile(
    r"(?P<channel>(?:https?|file)://\S+)/(?:linux-64|noarch)/"
    r"(?P<stem>[a-z0-9_.-]+-[^-/#\s]+-[^-/#\s]+)(?:\.conda|\.tar\.bz2)"
    r"#(?:sha256:)?(?P<sha256>[0-9a-f]{64})"
)


@dataclass(frozen=True)
class Consent:
    """What the operator recorded: terms of these channels, as of that day."""

    accepted_by: str
    accepted_on: date
    channels: tuple[str, ...]


@dataclass(frozen=True)
class Conda:
    """packages: the stem of a package's file, which names its record too -> its SHA-256."""

    program: Path
    lock: str
    packages: dict[str, str]
    channels: tuple[str, ...]
    consent: Consent | None

    @property
    def root(self) -> Path:
        """The directory of the conda itself."""
        return self.program.parent.parent


def read(spec: dict[str, Any]) -> Conda:
    fields.refuse_unknown(spec, KEYS, "conda")
    program = Path(fields.text(spec, "program"))
    channels = tuple(fields.texts(spec, "channels"))
    if not program.is_absolute() or program.parent.name != "bin" or not channels:
        raise SpecError(
            f"conda cannot be run as {program}",
            "it must be PREFIX/bin/conda, with at least one channel.",
            "Correct runtime.conda.",
        )
    lock = fields.text(spec, "lock")
    consent = spec.get("terms")
    return Conda(
        program=program,
        lock=lock,
        packages=locked(lock, channels),
        channels=channels,
        consent=read_consent(consent) if consent is not None else None,
    )


def read_consent(terms: Any) -> Consent:
    if not isinstance(terms, dict):
        raise SpecError(
            "the consent to terms is wrong", "'terms' must be an object.", "Correct it."
        )
    fields.refuse_unknown(terms, TERMS_KEYS, "terms")
    day = fields.text(terms, "accepted_on")
    try:
        accepted_on = date.fromisoformat(day)
    except ValueError as error:
        raise SpecError(
            "the consent to terms is wrong",
            f"accepted_on {day!r} is no date.",
            "Write it as YYYY-MM-DD.",
        ) from error
    channels = tuple(fields.texts(terms, "channels"))
    return Consent(fields.text(terms, "accepted_by"), accepted_on, channels)


def locked(lock: str, channels: tuple[str, ...]) -> dict[str, str]:
    """What an @EXPLICIT file pins. SpecError for a line without its hash or of another channel:
    conda would take both."""
    packages: dict[str, str] = {}
    marked = False
    for number, raw in enumerate(lock.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line == "@EXPLICIT":
            marked = True
            continue
        match = LINE.fullmatch(line)
        if match is None or match["channel"] not in channels:
            why = "is of no channel in the settings" if match else "is no package with a SHA-256"
            raise SpecError(
                f"line {number} of conda's lock cannot be used",
                f"it {why}: {line[:200]}",
                "Make it again with 'conda list --explicit --sha256'.",
            )
        packages[match["stem"]] = match["sha256"]
    if not marked or not packages:
        raise SpecError(
            "conda's lock cannot be used",
            "it has no line @EXPLICIT, or names no package; conda would solve by itself.",
            "Make it again with 'conda list --explicit --sha256'.",
        )
    return packages
