"""What the sections of the settings are made of."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    # Sections are validated inside Settings: a validator of their own is built when it is used.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    def to_json(self) -> dict[str, Any]:
        """Plain values, secrets masked; pyinfra's `debug-inventory` asks for this."""
        return self.model_dump(mode="json")


def setting(default: Any, description: str, example: Any, **limits: Any) -> Any:
    return Field(default, description=description, examples=[example], **limits)


def required(description: str, example: Any, **limits: Any) -> Any:
    return Field(description=description, examples=[example], **limits)


# Lists in YAML, tuples here: settings do not change after they are read.
LENIENT = Field(strict=False)
