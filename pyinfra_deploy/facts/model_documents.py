"""What is known of a model before it is pulled, as values that carry no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class ModelDocuments:
    """config, index: parsed JSON, or the text where it is none; listing: file path -> bytes.

    problem: why something could not be had, empty when all was. source: where it came from.
    """

    config: object = None
    index: object = None
    listing: Mapping[str, int] | None = None
    problem: str = ""
    source: str = ""
