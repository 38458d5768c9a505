"""Which engine gets a request: the one with the least outstanding work, unless affinity says else.

Affinity: an engine that has served the beginning of a conversation has it in its prefix cache.
Rendezvous hashing of that beginning gives every conversation its own order of engines, which
changes little when an engine comes or goes. The first in that order whose work is not above
`balance_factor` times the mean is taken: consistent hashing with bounded loads (Mirrokni et al.,
2016), so that one popular prefix does not fill one engine.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

# A prompt of so many tokens counts as one request more: prefill is work too.
TOKENS_PER_REQUEST = 4096
# Slack in requests: with two engines and two requests the mean says nothing.
_SLACK = 1.0


@dataclass(frozen=True)
class Candidate:
    """An engine that could take the request. work: outstanding, in requests; capacity likewise."""

    name: str
    work: float
    capacity: int
    picked: int


def cost(prompt_tokens: int | None) -> float:
    """The work of one request, in requests."""
    return 1.0 + (prompt_tokens or 0) / TOKENS_PER_REQUEST


def choose(candidates: Sequence[Candidate], prefix: bytes | None, balance_factor: float) -> str:
    """The name of the engine to take. candidates: at least one; picked: when it was last taken."""
    least = min(candidates, key=lambda one: (one.work / one.capacity, one.picked))
    if prefix is None or len(candidates) == 1:
        return least.name
    capacity = sum(one.capacity for one in candidates)
    mean = (sum(one.work for one in candidates) + 1.0) / capacity
    for one in rendezvous(candidates, prefix):
        if one.work <= balance_factor * mean * one.capacity + _SLACK:
            return one.name
    return least.name


def rendezvous(candidates: Sequence[Candidate], prefix: bytes) -> list[Candidate]:
    """The candidates in the order that this prefix prefers."""

    def weight(one: Candidate) -> bytes:
        return hashlib.blake2b(prefix, key=one.name.encode()[:64], digest_size=8).digest()

    return sorted(candidates, key=weight, reverse=True)


def conversation_prefix(document: dict[str, Any], prefix_bytes: int) -> bytes | None:
    """The first bytes of what the engine will read, in the order in which templates put it."""
    if not prefix_bytes:
        return None
    parts: list[str] = []
    size = 0
    for name in ("tools", "instructions", "prompt", "input", "messages"):
        value = document.get(name)
        for one in value if isinstance(value, list) else () if value is None else (value,):
            text = one if isinstance(one, str) else json.dumps(one, separators=(",", ":"))
            parts.append(text)
            size += len(text)
            if size >= prefix_bytes:
                break
    # A shorter prompt is its own whole beginning: nothing worth keeping together.
    joined = "\0".join(parts).encode(errors="replace")
    return joined[:prefix_bytes] if len(joined) >= prefix_bytes else None
