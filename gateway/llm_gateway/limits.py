"""Limits of a key: requests and tokens per minute, each a token bucket.

A bucket holds at most one minute's allowance and fills continuously, so a client that was silent
may spend a minute's worth at once and then gets the steady rate. The prompt's tokens are taken when
a request is admitted. What the engine then generates is known only afterwards: it is charged when
it is known and may bring the bucket below zero, which the next request waits out.

Limits are per gateway process: with several gateways a key has them on each.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .keys import Key

SECONDS = 60.0


@dataclass
class Bucket:
    """`per_minute` units a minute, at most as many at once. Times are monotonic seconds."""

    per_minute: int
    level: float
    at: float

    @classmethod
    def full(cls, per_minute: int, now: float) -> Bucket:
        return cls(per_minute, float(per_minute), now)

    def fill(self, now: float) -> None:
        if now > self.at:
            gained = (now - self.at) * self.per_minute / SECONDS
            self.level = min(float(self.per_minute), self.level + gained)
            self.at = now

    def wait_seconds(self, amount: float, now: float) -> float:
        """How long until `amount` can be taken; 0.0 when it can be now."""
        self.fill(now)
        missing = amount - self.level
        return 0.0 if missing <= 0 else missing * SECONDS / self.per_minute

    def take(self, amount: float) -> None:
        self.level -= amount


class KeyLimits:
    """The buckets of all keys that have limits; a key's change of limits starts a new bucket."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: dict[str, Bucket] = {}
        self._tokens: dict[str, Bucket] = {}

    def request(self, key: Key) -> None:
        """Count one request. Raises Refusal (429)."""
        bucket = self._bucket(self._requests, key.id, key.requests_per_minute)
        if bucket is not None:
            self._take(bucket, 1, f"{key.requests_per_minute} requests", "requests")
        bucket = self._bucket(self._tokens, key.id, key.tokens_per_minute)
        # In debt from what was generated: known before the body is read.
        if bucket is not None and bucket.wait_seconds(1, self._clock()) > 0:
            self._take(bucket, 1, f"{key.tokens_per_minute} tokens", "tokens")

    def prompt(self, key: Key, tokens: int) -> None:
        """Take an admitted prompt's tokens. Raises Refusal (429, or 413 when it never fits)."""
        bucket = self._bucket(self._tokens, key.id, key.tokens_per_minute)
        if bucket is None:
            return
        if tokens > bucket.per_minute:
            raise Refusal(
                413,
                "tokens_per_minute_exceeded",
                f"The prompt has {tokens} tokens and this API key may use {bucket.per_minute} a "
                "minute: waiting does not help. Shorten the prompt, or ask for a higher limit.",
                type="tokens",
                extra={"prompt_tokens": tokens, "limit": bucket.per_minute},
            )
        self._take(bucket, tokens, f"{key.tokens_per_minute} tokens", "tokens")

    def generated(self, key: Key, tokens: int) -> None:
        """Charge what was generated, or what else became known; never refuses."""
        bucket = self._bucket(self._tokens, key.id, key.tokens_per_minute)
        if bucket is not None:
            bucket.fill(self._clock())
            bucket.take(tokens)

    def forget(self, known: Iterable[str]) -> None:
        """Drop the buckets of keys that are not known any more."""
        known = set(known)
        for buckets in (self._requests, self._tokens):
            for identifier in [one for one in buckets if one not in known]:
                del buckets[identifier]

    def _bucket(
        self, buckets: dict[str, Bucket], identifier: str, per_minute: int | None
    ) -> Bucket | None:
        if per_minute is None:
            buckets.pop(identifier, None)
            return None
        bucket = buckets.get(identifier)
        if bucket is None or bucket.per_minute != per_minute:
            bucket = buckets[identifier] = Bucket.full(per_minute, self._clock())
        return bucket

    def _take(self, bucket: Bucket, amount: int, limit: str, kind: str) -> None:
        wait = bucket.wait_seconds(amount, self._clock())
        if wait > 0:
            raise Refusal(
                429,
                "rate_limit_exceeded",
                f"This API key may use {limit} a minute. Wait for the seconds in the Retry-After "
                "header, then try again.",
                type=kind,
                retry_after_seconds=wait,
            )
        bucket.take(amount)
