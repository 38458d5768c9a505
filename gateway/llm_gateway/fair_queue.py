"""A bounded queue that is fair between tiers by weight, and within a tier between keys.

Between tiers: stride scheduling. Each tier has a virtual time that moves on by 1/share when one of
its requests leaves; the tier with the smallest goes next. A tier that was empty starts at the
current virtual time, so it cannot save up turns. No tier's share is below MIN_SHARE, whatever the
weights say: the lowest keeps moving at saturation.

Within a tier: keys take turns, each in the order of its own requests.

Full: the newest waiting request of the lowest tier gives way to a request of a higher tier, and
within a tier one of the key that has most waiting to a key that has fewer. Each tier keeps a
reserve of places (MIN_SHARE of the queue, at least one), which other tiers cannot take.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MIN_SHARE = 0.05

T = TypeVar("T")


def shares(weights: Mapping[str, float]) -> dict[str, float]:
    """The part of the whole that each tier gets when all have requests waiting; sums to 1.

    Tiers whose weight gives them less than MIN_SHARE get MIN_SHARE, the others the rest by weight.
    With more than 1/MIN_SHARE tiers all get the same.
    """
    if len(weights) * MIN_SHARE >= 1:
        return dict.fromkeys(weights, 1 / len(weights))
    floored: set[str] = set()
    while True:
        rest = 1 - MIN_SHARE * len(floored)
        total = sum(weight for name, weight in weights.items() if name not in floored)
        found = {
            name: MIN_SHARE if name in floored else rest * weight / total
            for name, weight in weights.items()
        }
        low = {name for name, share in found.items() if share < MIN_SHARE - 1e-12}
        if not low:
            return found
        floored |= low


class _Tier(Generic[T]):
    def __init__(self, share: float) -> None:
        self.share = share
        self.virtual_time = 0.0
        self.size = 0
        # Key -> its requests; the first key is the next one to go.
        self.keys: OrderedDict[str, deque[T]] = OrderedDict()

    def push(self, key: str, item: T) -> None:
        self.keys.setdefault(key, deque()).append(item)
        self.size += 1

    def pop(self) -> T:
        key, items = next(iter(self.keys.items()))
        item = items.popleft()
        self.size -= 1
        del self.keys[key]
        if items:
            self.keys[key] = items  # to the end: the other keys' turn
        return item

    def drop_newest(self) -> T:
        """Take out the newest request of the key that has most waiting."""
        key = max(self.keys, key=lambda name: len(self.keys[name]))
        item = self.keys[key].pop()
        self.size -= 1
        if not self.keys[key]:
            del self.keys[key]
        return item

    def remove(self, key: str, item: T) -> bool:
        items = self.keys.get(key)
        if items is None or item not in items:
            return False
        items.remove(item)
        self.size -= 1
        if not items:
            del self.keys[key]
        return True


class FairQueue(Generic[T]):
    """Requests that wait for one model. `weights`: tier -> weight, lowest tier first."""

    def __init__(self, weights: Mapping[str, float], limit: int) -> None:
        self.limit = limit
        self._tiers: dict[str, _Tier[T]] = {
            name: _Tier(share) for name, share in shares(weights).items()
        }
        # Lowest first: that is the order in which requests give way.
        self._order = sorted(weights, key=lambda name: weights[name])
        self._reserve = max(1, int(limit * MIN_SHARE)) if limit else 0
        self._virtual_time = 0.0

    def __len__(self) -> int:
        return sum(tier.size for tier in self._tiers.values())

    def sizes(self) -> dict[str, int]:
        return {name: tier.size for name, tier in self._tiers.items()}

    def push(self, tier: str, key: str, item: T) -> tuple[bool, T | None]:
        """Add a request: (whether it has a place, who lost theirs for it)."""
        dropped = None
        if len(self) >= self.limit:
            loser = self._who_gives_way(tier, key)
            if loser is None:
                return False, None
            dropped = loser.drop_newest()
        place = self._tiers[tier]
        if place.size == 0:
            place.virtual_time = max(place.virtual_time, self._virtual_time)
        place.push(key, item)
        return True, dropped

    def pop(self) -> T | None:
        """The next request to go, or None."""
        waiting = [tier for tier in self._tiers.values() if tier.size]
        if not waiting:
            return None
        chosen = min(waiting, key=lambda tier: tier.virtual_time + 1 / tier.share)
        chosen.virtual_time += 1 / chosen.share
        self._virtual_time = max(self._virtual_time, chosen.virtual_time - 1 / chosen.share)
        return chosen.pop()

    def remove(self, tier: str, key: str, item: T) -> bool:
        """Take out a request whose client left or whose time is over; False when it is not here."""
        return self._tiers[tier].remove(key, item)

    def drain(self) -> Iterator[T]:
        """Take out all, in the order in which they would have gone."""
        while (item := self.pop()) is not None:
            yield item

    def _who_gives_way(self, tier: str, key: str) -> _Tier[T] | None:
        own = self._order.index(tier)
        place = self._tiers[tier]
        in_reserve = place.size < self._reserve
        for position, name in enumerate(self._order):
            lower = position < own
            other = position != own
            if (lower or (in_reserve and other)) and self._tiers[name].size > self._reserve:
                return self._tiers[name]
        # One key must not keep the others of its tier out.
        most = max((len(items) for items in place.keys.values()), default=0)
        return place if most > len(place.keys.get(key, ())) + 1 else None
