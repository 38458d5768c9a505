"""`usage` in answers: read for limits and metrics, and extended only where a setting says so.

Reading changes nothing: the last chunks are remembered and looked at when the answer has ended.
Extending (usage.kv_cache) touches one event of a stream, the final one that the client asked for
by stream_options.include_usage, or the one JSON document of an answer that is no stream.
"""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass
from typing import Any

FIELD = "kv_cache_usage_percent"
# An event of the engine's is a few hundred bytes; one with logprobs a few thousand.
MAX_HELD_BYTES = 1024 * 1024

_USAGE = re.compile(rb'"usage":\s*\{')
_EVENT_END = b"\n\n"
# A quotation mark inside a text is \" in JSON, so an answer cannot forge these.
_PROMPT = re.compile(rb'"(?:prompt_tokens|input_tokens)":\s*(\d{1,9})\b')
_GENERATED = re.compile(rb'"(?:completion_tokens|output_tokens)":\s*(\d{1,9})\b')
# The final events of a stream: the usage, [DONE], and either of them torn in two.
_REMEMBERED_CHUNKS = 4


@dataclass(frozen=True)
class Usage:
    """Tokens as the engine counted them."""

    prompt_tokens: int
    generated_tokens: int


class UsageReader:
    """Follows an answer's chunks. events: how many events a stream had, about one a token."""

    def __init__(self) -> None:
        self._last: deque[bytes] = deque(maxlen=_REMEMBERED_CHUNKS)
        self.events = 0

    def feed(self, chunk: bytes) -> None:
        self._last.append(chunk)
        self.events += chunk.count(_EVENT_END)

    def ended_an_event(self) -> bool:
        """Whether the last chunk so far ended with the end of an event."""
        return bool(self._last) and self._last[-1].endswith(_EVENT_END)

    def usage(self) -> Usage | None:
        """The usage that the answer ended with; None when it had none, or broke off."""
        text = b"".join(self._last)
        starts = [match.end() for match in _USAGE.finditer(text)]
        if not starts:
            return None
        part = text[starts[-1] : starts[-1] + 1024]
        prompt, generated = _PROMPT.search(part), _GENERATED.search(part)
        if prompt is None:
            return None
        # Embeddings generate nothing.
        return Usage(int(prompt[1]), int(generated[1]) if generated else 0)


class UsageWriter:
    """Passes a stream's events unchanged but for the final usage, which gets one field more.

    An event that is not yet complete is held back until it is: half an event is of no use to a
    client. One that grows beyond MAX_HELD_BYTES is passed as it is.
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> tuple[list[bytes], bytes | None]:
        """(what may be passed at once, the final usage event or None, which comes after it).

        What follows the usage event in the same chunk ([DONE]) stays held: call feed(b"") after.
        """
        text = self._held + chunk
        end = text.rfind(_EVENT_END)
        if end < 0 and len(text) <= MAX_HELD_BYTES:
            self._held = text
            return [], None
        complete = text if end < 0 else text[: end + len(_EVENT_END)]
        self._held = text[len(complete) :]
        if _USAGE.search(complete) is None:
            return [complete], None
        start = 0
        while start < len(complete):
            stop = complete.find(_EVENT_END, start)
            stop = len(complete) if stop < 0 else stop + len(_EVENT_END)
            if is_final_usage(complete[start:stop]):
                self._held = complete[stop:] + self._held
                before = complete[:start]
                return ([before] if before else []), complete[start:stop]
            start = stop
        return [complete], None

    def rest(self) -> bytes:
        """What is left when the stream has ended in the middle of an event."""
        held, self._held = self._held, b""
        return held


def is_final_usage(event: bytes) -> bool:
    """Whether this event is the usage after the last choice (choices empty, usage an object)."""
    document = _event_document(event)
    return (
        document is not None
        and document.get("choices") == []
        and isinstance(document.get("usage"), dict)
    )


def extended_event(event: bytes, percent: float | None) -> bytes:
    """The final usage event with the cache's use; unchanged when that is not known."""
    document = _event_document(event)
    if document is None or percent is None:
        return event
    document["usage"][FIELD] = percent
    return b"data: " + _compact(document) + _EVENT_END


def extended_document(body: bytes, percent: float | None) -> bytes:
    """An answer that is no stream, with the cache's use in `usage`; unchanged if it has none."""
    if percent is None or _USAGE.search(body) is None:
        return body
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(document, dict) or not isinstance(document.get("usage"), dict):
        return body
    document["usage"][FIELD] = percent
    return _compact(document)


def _event_document(event: bytes) -> dict[str, Any] | None:
    line = event.strip()
    if not line.startswith(b"data:") or b"\n" in line:
        return None
    try:
        document = json.loads(line.removeprefix(b"data:"))
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _compact(document: dict[str, Any]) -> bytes:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    # The engine may have sent half a surrogate pair as an escape: written as it came.
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(document, separators=(",", ":")).encode()
