"""The peers of a pull, each asked again and again in threads of its own, and what this host tells.

As long as a pull lives it asks every peer and its own server, which is what keeps the servers open.
"""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import peers, share_state, sharing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .sharing import Peer, Sharing

# Of a few hosts each is asked once a second; of a hundred every five, so that none answers more
# than some twenty questions a second.
LEAST_SECONDS, SECONDS_A_PEER = 1.0, 0.05
AGAIN_SECONDS = 10.0
ASKING_THREADS = 8
# A peer that has not answered for so long is not waited for.
GONE_SECONDS = 12.0
SAY_SECONDS = 1.0


@dataclass
class Seen:
    """What a peer last said. problem: why it did not answer the last time. ever: it has once."""

    peer: Peer
    files: set[str] = field(default_factory=set)
    coming: set[str] = field(default_factory=set)
    pulling: bool = False
    starting: bool = False
    hub: bool = False
    hub_failed: str | None = None
    bytes: int = 0
    hashed: int = 0
    uploads: int = 0
    problem: str | None = None
    ever: bool = False
    asked: bool = False
    left_until: float = 0.0
    answered_at: float = 0.0
    next_at: float = 0.0

    @property
    def answers(self) -> bool:
        """Whether it counts: one lost answer is no death."""
        now = time.monotonic()
        recent = now - self.answered_at < GONE_SECONDS
        return self.ever and now >= self.left_until and (self.problem is None or recent)


class PeerWatch:
    """Asks from the moment it is made until `end`. Its readers take what is there; each Seen is
    changed by the asking thread alone, a field at a time."""

    def __init__(
        self,
        found: Sharing,
        coming: Iterable[str] = (),
        hashed_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.model = found.model
        self.rank = found.rank
        self._sharing = found
        self._seen: dict[str, Seen] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(ASKING_THREADS)
        self._said_at = 0.0
        self._hashed_bytes = hashed_bytes
        self._state: dict[str, Any] = {
            "coming": sorted(coming), "bytes": 0, "hub": False, "hub_failed": None, "ended": False,
        }  # fmt: skip
        self._renew()
        share_state.write(self.model, self._state)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def tokens(self) -> tuple[str, ...]:
        return self._sharing.tokens

    def all(self) -> list[Seen]:
        """The peers, without this host itself, by rank."""
        with self._lock:
            found = [seen for seen in self._seen.values() if seen.peer.name != self._sharing.name]
        return sorted(found, key=lambda seen: seen.peer.rank)

    def answering(self) -> list[Seen]:
        return [seen for seen in self.all() if seen.answers]

    def asked_all(self) -> bool:
        return all(seen.asked for seen in self.all())

    def leave_alone(self, name: str, seconds: float = math.inf) -> None:
        with self._lock:
            self._seen[name].left_until = time.monotonic() + seconds

    def movement(self) -> tuple[int, frozenset[str]]:
        """Something that changes while a peer that pulls gets on, or hashes what it has, and when
        another one tries the hub."""
        alive = self.answering()
        at_hub = frozenset(seen.peer.name for seen in alive if seen.hub)
        return sum(seen.bytes + len(seen.files) + seen.hashed for seen in alive), at_hub

    def in_words(self) -> str:
        alive = self.answering()
        givers = [seen.peer.name for seen in alive if seen.files]
        at_hub = [seen.peer.name for seen in alive if seen.hub]
        text = f"{len(alive)} of {len(self.all())} peers answer"
        if givers:
            more = f" and {len(givers) - 3} more" if len(givers) > 3 else ""
            text += f"; files from {', '.join(givers[:3])}{more}"
        return text + (f"; {at_hub[0]} asks the hub" if at_hub else "")

    # --- what this host tells

    def say(
        self,
        have_bytes: int,
        *,
        hub: bool = False,
        coming: Iterable[str] = (),
        hub_failed: str | None = None,
    ) -> None:
        """coming: what this host has and is about to give, by SHA-256. hub_failed: why the hub
        gives it nothing just now."""
        state = {
            "coming": sorted(coming), "bytes": have_bytes, "hub": hub, "hub_failed": hub_failed,
        }  # fmt: skip
        with self._lock:
            changed = any(self._state[key] != state[key] for key in state if key != "bytes")
            self._state |= state
        if changed or time.monotonic() - self._said_at >= SAY_SECONDS:
            self._write()

    def _write(self) -> None:
        with self._lock:
            self._said_at = time.monotonic()
            state = {**self._state, "hashed": self._hashed_bytes()}
            share_state.write(self.model, state)

    def end(self, hub_failed: str | None = None) -> None:
        """This host pulls no more; hub_failed: why the hub gave it nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        with self._lock:
            self._state |= {"ended": True, "hub": False, "hub_failed": hub_failed, "coming": []}
        self._write()
        self._thread.join()
        self._pool.shutdown(wait=True)

    # --- asking

    def _renew(self) -> None:
        found = sharing.read(self.model) or self._sharing
        with self._lock:
            self._sharing = found
            for peer in found.peers:
                known = self._seen.get(peer.name)
                if known is None or known.peer != peer:
                    self._seen[peer.name] = Seen(peer)

    def _watch(self) -> None:
        under_way: set[str] = set()
        renewed_at = time.monotonic()
        while not self._ended.wait(0.1):
            now = time.monotonic()
            if now - renewed_at > 2.0:
                self._renew()
                renewed_at = now
            if now - self._said_at > 5 * SAY_SECONDS:
                self._write()  # while the pull hashes what was there before
            with self._lock:
                due = [
                    seen
                    for name, seen in self._seen.items()
                    if seen.next_at <= now and name not in under_way
                ]
                under_way |= {seen.peer.name for seen in due}
                pause = max(LEAST_SECONDS, SECONDS_A_PEER * len(self._seen))
            for seen in due:
                self._pool.submit(self._ask, seen, pause, under_way)

    def _ask(self, seen: Seen, pause: float, under_way: set[str]) -> None:
        try:
            if not self._ended.is_set():
                self._ask_once(seen, pause)
        finally:
            with self._lock:
                under_way.discard(seen.peer.name)

    def _ask_once(self, seen: Seen, pause: float) -> None:
        source = seen.peer.address if seen.peer.name == self._sharing.name else None
        try:
            told = peers.ask(seen.peer, self.model, self.tokens, source=source)
        except Exception as error:
            # Whatever it is: one that cannot be asked is not waited for.
            seen.problem = peers.in_words(error)
            refused = isinstance(error, ConnectionRefusedError)
            if refused or not seen.ever:
                seen.answered_at = 0.0  # its server is gone: nothing to wait for
            seen.next_at = time.monotonic() + (AGAIN_SECONDS if not seen.ever else pause)
        else:
            seen.files, seen.coming = told["files"], told["coming"]
            seen.pulling, seen.starting = told["pulling"], told["starting"]
            seen.hub = told["hub"]
            seen.hub_failed = told["hub_failed"] if isinstance(told["hub_failed"], str) else None
            seen.bytes = told["bytes"] if isinstance(told["bytes"], int) else 0
            seen.hashed = told["hashed"] if isinstance(told["hashed"], int) else 0
            seen.uploads = told["uploads"] if isinstance(told["uploads"], int) else 0
            seen.problem, seen.ever = None, True
            seen.answered_at = time.monotonic()
            seen.next_at = seen.answered_at + pause
        seen.asked = True
