"""Who goes to which engine, and who waits: slots of engines and the fair queues before them.

A request takes a slot of an engine (`acquire`) and gives it back (`Lease.release`). When all
engines of its model are full it waits in their queue. A request whose engine failed before its
first byte goes again, before those that have not been anywhere yet.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

from .backend import Backend, address_of
from .config import names_of
from .fair_queue import FairQueue
from .refusals import Refusal
from .routing import choose

if TYPE_CHECKING:
    from .config import Config

# What an answer to "come back later" says where nothing better is known.
OVERLOAD_RETRY_SECONDS = 5.0
DOWN_RETRY_SECONDS = 10.0

Pool = tuple[str, ...]


@dataclass(eq=False)
class Wish:
    """What a request needs of an engine. avoid: engines that have failed it already. sent_back: by
    one that drains, and that may get it again when it does no more."""

    model: str
    tier: str
    key_id: str
    cost: float
    prefix: bytes | None = None
    avoid: set[str] = field(default_factory=set)
    sent_back: bool = False

    @property
    def goes_first(self) -> bool:
        return self.sent_back or bool(self.avoid)


@dataclass(eq=False)
class Lease:
    """A slot of an engine. trial: it is the one request that a half-open breaker let pass."""

    dispatcher: Dispatcher
    backend: Backend
    cost: float
    trial: bool

    def release(self) -> None:
        """Give the slot back, once, whatever happened; waiting requests go."""
        self.backend.outstanding -= 1
        self.backend.work -= self.cost
        if self.trial:
            self.backend.breaker.end_trial()
        self.dispatcher.freed()


@dataclass(eq=False)
class _Waiting:
    wish: Wish
    future: asyncio.Future[Lease]


class Dispatcher:
    """All engines and all queues of one configuration; the configuration may be replaced."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.backends: dict[str, Backend] = {}
        self.retired: list[Backend] = []
        self._queues: dict[Pool, FairQueue[_Waiting]] = {}
        self._pools: dict[str, Pool] = {}
        # Failed over: before those in the queues, in no tier's account.
        self._again: list[_Waiting] = []
        self._picks = count(1)
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Take up another configuration: engines that stay keep their streams, slots and state."""
        before = self.backends
        self.backends = {}
        for wanted in config.backends:
            backend = before.get(wanted.name)
            if backend is not None and backend.address == address_of(wanted):
                del before[wanted.name]
                backend.configure(wanted)
                if config.health != self.config.health:
                    backend.set_health(config.health)
            else:
                backend = Backend(wanted, config.health)
            backend.look_at_flag()
            self.backends[wanted.name] = backend
        for backend in before.values():
            backend.retired = True
            self.retired.append(backend)
        self.config = config
        self._pools.clear()
        self.rerouted()

    def rerouted(self) -> None:
        """Engines serve something else than was thought: what is known of models follows, and who
        waits, waits for those that serve its model now."""
        backends = tuple(one.config for one in self.backends.values())
        self.config = replace(self.config, backends=backends, models=names_of(backends))
        self._requeue()
        self.tick()

    def pool(self, model: str) -> Pool:
        """The engines that serve a model, by name: requests of one pool wait in one queue."""
        return tuple(
            name for name, one in self.backends.items() if one.config.served_name(model) is not None
        )

    def usable(self, pool: Pool) -> list[Backend]:
        """Engines that may get a request now, full or not.

        Closed breakers first; only when there is none, half-open ones whose trial is free.
        """
        found = [one for one in self._members(pool) if not one.draining]
        closed = [one for one in found if one.breaker.state() == "closed"]
        return closed or [one for one in found if one.breaker.trial_is_free()]

    def _members(self, pool: Pool) -> list[Backend]:
        return [self.backends[name] for name in pool]

    def pick(self, wish: Wish) -> Lease | None:
        """A slot of the best engine that has one free, or None."""
        candidates = [
            one
            for one in self.usable(self.pool(wish.model))
            if one.has_room() and one.config.name not in wish.avoid
        ]
        if not candidates:
            return None
        name = choose(
            [one.candidate() for one in candidates], wish.prefix, self.config.balance_factor
        )
        return self._lease(self.backends[name], wish)

    def _lease(self, backend: Backend, wish: Wish) -> Lease:
        backend.outstanding += 1
        backend.work += wish.cost
        backend.picked = next(self._picks)
        return Lease(self, backend, wish.cost, trial=backend.breaker.begin_trial())

    async def acquire(self, wish: Wish) -> Lease:
        """A slot, after waiting for one if need be. Raises Refusal (503)."""
        # The configuration may have changed since the request was read.
        wish.tier = self.config.tier(wish.tier)
        pool = self.pool(wish.model)
        if not self.reachable(wish):
            raise self.unavailable(pool)
        queue = self._queue(pool)
        if wish.goes_first or not len(queue):
            lease = self.pick(wish)
            if lease is not None:
                return lease
        waiting = _Waiting(wish, asyncio.get_running_loop().create_future())
        if wish.goes_first:
            self._again.append(waiting)
        else:
            placed, dropped = queue.push(wish.tier, wish.key_id, waiting)
            if not placed:
                raise _overloaded("More requests are waiting than this service keeps.")
            if dropped is not None:
                _fail(dropped, _overloaded("Requests of a higher tier took its place."))
        lease = None
        try:
            async with asyncio.timeout(self.config.max_wait_seconds):
                lease = await waiting.future
        except TimeoutError as error:
            raise _overloaded(
                f"No engine had room within {self.config.max_wait_seconds:g} seconds."
            ) from error
        finally:
            if lease is None:
                self._leave(waiting)
        return lease

    def _leave(self, waiting: _Waiting) -> None:
        """It got no slot: its time is over, its client left, or it was refused."""
        future = waiting.future
        if future.done() and not future.cancelled() and future.exception() is None:
            # Given in the moment in which it was cancelled: nobody else would give it back.
            future.result().release()
            return
        future.cancel()
        if waiting in self._again:
            self._again.remove(waiting)
        queue = self._queues.get(self.pool(waiting.wish.model))
        if queue is not None:
            queue.remove(waiting.wish.tier, waiting.wish.key_id, waiting)

    def freed(self) -> None:
        """A slot is free, or an engine may be used again: let those go who can."""
        for waiting in list(self._again):
            lease = None if waiting.future.done() else self.pick(waiting.wish)
            if lease is not None:
                waiting.future.set_result(lease)
            if waiting.future.done():
                self._again.remove(waiting)
        for pool, queue in self._queues.items():
            while len(queue) and any(one.has_room() for one in self.usable(pool)):
                following = queue.pop()
                if following is None or following.future.done():
                    continue
                lease = self.pick(following.wish)
                if lease is None:
                    _fail(following, self.unavailable(pool))
                else:
                    following.future.set_result(lease)

    def tick(self) -> None:
        """Look at drain flags and at breakers whose time is over; refuse those who wait in vain."""
        for backend in self.backends.values():
            backend.look_at_flag()
        self.freed()
        for pool, queue in self._queues.items():
            if len(queue) and not self.usable(pool):
                for waiting in queue.drain():
                    _fail(waiting, self.unavailable(pool))
        for waiting in list(self._again):
            if not self.reachable(waiting.wish):
                self._again.remove(waiting)
                _fail(waiting, self.unavailable(self.pool(waiting.wish.model)))

    def waiting(self) -> dict[str, int]:
        """Tier -> how many wait."""
        found = dict.fromkeys(self.config.tiers, 0)
        for waiting in self._again:
            found[waiting.wish.tier] = found.get(waiting.wish.tier, 0) + 1
        for queue in self._queues.values():
            for tier, size in queue.sizes().items():
                found[tier] = found.get(tier, 0) + size
        return found

    def reachable(self, wish: Wish) -> bool:
        """Whether an engine that has not failed this request may get it, full or not."""
        usable = self.usable(self.pool(wish.model))
        return any(one.config.name not in wish.avoid for one in usable)

    def unavailable(self, pool: Pool) -> Refusal:
        """No engine may get this request: why, and when to come again."""
        members = self._members(pool)
        if members and all(one.draining for one in members):
            return Refusal(
                503,
                "engine_draining",
                "The model is being taken out of service here and accepts no new requests. Try "
                "again after the seconds in Retry-After.",
                retry_after_seconds=DOWN_RETRY_SECONDS,
            )
        waits = [one.breaker.wait_seconds() for one in members if not one.draining]
        return Refusal(
            503,
            "engine_unavailable",
            "The model is not being served just now. Try again after the seconds in Retry-After.",
            retry_after_seconds=max(1.0, min(waits, default=DOWN_RETRY_SECONDS)),
        )

    def _queue(self, pool: Pool) -> FairQueue[_Waiting]:
        queue = self._queues.get(pool)
        if queue is None:
            weights = {tier: one.weight for tier, one in self.config.tiers.items()}
            queue = self._queues[pool] = FairQueue(weights, self.config.max_waiting)
        return queue

    def _requeue(self) -> None:
        """Build the queues anew; who waits keeps waiting, in the old order."""
        before, self._queues = self._queues, {}
        for queue in before.values():
            for waiting in queue.drain():
                wish = waiting.wish
                wish.tier = self.config.tier(wish.tier)
                pool = self.pool(wish.model)
                placed, dropped = self._queue(pool).push(wish.tier, wish.key_id, waiting)
                for loser in (dropped, None if placed else waiting):
                    if loser is not None:
                        _fail(loser, _overloaded("The queue was made smaller."))

    async def close_retired(self) -> None:
        """Close the connections of engines that are gone from the configuration and idle."""
        for backend in self.backends.values():
            await backend.close_former()
        for backend in [one for one in self.retired if not one.outstanding]:
            self.retired.remove(backend)
            await backend.close()

    async def close(self) -> None:
        for backend in (*self.backends.values(), *self.retired):
            await backend.close()


def _fail(waiting: _Waiting, refusal: Refusal) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(refusal)


def _overloaded(reason: str) -> Refusal:
    return Refusal(
        503,
        "engine_overloaded",
        f"The service is at its limit. {reason} Try again after the seconds in Retry-After.",
        retry_after_seconds=OVERLOAD_RETRY_SECONDS,
    )
