"""Answers of our own that are no success, in the shape that OpenAI's clients read.

    {"error": {"message": str, "type": str, "param": str | null, "code": str}}

The message is for the person who wrote the request: what is wrong and what to change. It repeats
names and numbers of the request, never its text.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

_TYPES = {429: "requests", 503: "server_error", 504: "server_error", 500: "server_error"}
_PLAIN_NAME_LENGTH = 128


@dataclass(eq=False)
class Refusal(Exception):
    """Raised wherever a request ends; the application turns it into an answer.

    retry_after_seconds: the Retry-After header, rounded up to whole seconds, at least 1.
    extra: fields beside the usual four, for programs (limits and counts).
    """

    status: int
    code: str
    message: str
    param: str | None = None
    type: str | None = None
    retry_after_seconds: float | None = None
    allow: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.status} {self.code}"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Retry-After, Allow and WWW-Authenticate, where they belong."""
        found = []
        if self.retry_after_seconds is not None:
            seconds = max(1, math.ceil(self.retry_after_seconds))
            found.append((b"retry-after", str(seconds).encode()))
        if self.allow is not None:
            found.append((b"allow", self.allow.encode()))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        return found

    def body(self) -> bytes:
        """The JSON document."""
        error = {
            "message": self.message,
            "type": self.type or _TYPES.get(self.status, "invalid_request_error"),
            "param": self.param,
            "code": self.code,
            **self.extra,
        }
        return json.dumps({"error": error}).encode()


def shown(name: str) -> str:
    """A name out of a request, fit to be repeated to whoever sent it: one line, bounded."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in name)
    if len(plain) > _PLAIN_NAME_LENGTH:
        plain = plain[:_PLAIN_NAME_LENGTH] + "..."
    return f"'{plain}'"


def invalid_key() -> Refusal:
    return Refusal(
        401,
        "invalid_api_key",
        "A valid API key is needed: send it as Authorization: Bearer sk-...",
    )


def wrong_method(allow: str) -> Refusal:
    return Refusal(
        405,
        "method_not_supported",
        "This address does not take this method; the Allow header names what it takes.",
        allow=allow,
    )


def no_such_address() -> Refusal:
    return Refusal(
        404,
        "unknown_url",
        "This address does not exist here. Compare its spelling with the API reference.",
    )
