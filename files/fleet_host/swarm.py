"""A pull among others: files from hosts that have them, and one host at a time at the hub.

Every pull asks all its peers once a second or so what they have and what they do. What somebody has
verified is taken from there; what nobody has, the first host that pulls (by the inventory's order)
brings from the hub, and the others wait for it. Nobody appoints that host: a peer that does not
answer, or whose pull has ended, is not waited for, so the next one takes its place.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from . import client, hashing, integrity, peers, sharing, turns
from .early import EarlyVerification
from .peer_watch import PeerWatch, Seen

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .errors import HostError
    from .listing import FileEntry
    from .pull_spec import Wanted
    from .sharing import Peer
    from .staging import Memory, Places
    from .status import Progress

TICK_SECONDS = 0.25
# A peer that broke off so often in a row, though it answers questions, is left alone for a while.
MOST_FAILURES, LEFT_SECONDS = 4, 120.0
# The host at the hub gives up after model.stall_timeout_seconds and says so; those that wait for it
# must not give it up in the same moment, nor each other.
STALL_SPARE_SECONDS = 60.0
# Between two questions to a peer that was too busy; the more hosts ask, the longer.
BUSY_SECONDS, BUSY_SECONDS_A_PEER = 0.3, 0.02
AGAIN_SECONDS = 2.0
_RANDOM = random.SystemRandom()


class Yielded(BaseException):
    """Peers have by now what this host was fetching from the hub. Not an Exception: nothing on the
    way may take it for a failed download."""


@dataclass
class Transfer:
    """One file on its way from a peer."""

    entry: FileEntry
    peer: Seen
    tally: hashing.Tally = field(default_factory=hashing.Tally)


class Swarm:
    """See above. Used by the pull's own thread only; PeerWatch and transfers have others."""

    def __init__(self, wanted: Wanted, place: Places) -> None:
        self._wanted = wanted
        self._place = place
        self._watcher: PeerWatch | None = None
        self._needed: tuple[FileEntry, ...] = ()
        self._origins: dict[str, peers.Origins] = {}
        self._busy_until: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._stalls: Counter[str] = Counter()
        self._busy: set[str] = set()
        self._liars: set[str] = set()
        self._early = EarlyVerification(place.model)
        # Files that are as locked and broken all the same: the hub's pull says so in its words.
        self._broken: set[str] = set()
        self._told: set[str] = set()
        # Why, where the hub will not give this host anything.
        self._refused: str | None = None
        self.account = peers.Account()

    @property
    def _watch(self) -> PeerWatch:
        assert self._watcher is not None
        return self._watcher

    def begin(self, memory: Memory, needed: tuple[FileEntry, ...], progress: Progress) -> None:
        """Ask and tell from here on. What is here and has not been verified is announced: others
        then wait for that, and ask no hub for it."""
        self._needed = needed
        model = f"{self._place.final.parent.name}/{self._place.final.name}"
        found = sharing.read(model) or sharing.alone(model)
        coming = [
            entry.sha256
            for entry in needed
            if entry.path not in memory.good
            and (stat := integrity.stat_of(self._place.model / entry.path)) is not None
            and stat.size_bytes == entry.size_bytes
        ]
        self._watcher = PeerWatch(found, coming, progress.hashed_bytes)

    # --- from peers

    def gather(
        self, memory: Memory, progress: Progress, missing: list[FileEntry]
    ) -> list[FileEntry]:
        """Take what peers have; the files that it is now this host's turn to bring from the hub.
        Empty: all are here."""
        self._early.wait(memory)  # what the hub's client had brought when it was left
        total = sum(entry.size_bytes for entry in self._needed)
        progress.phase("peers", total=total, unit="bytes", message=self._watch.in_words())
        # Not all hosts begin with the same file, else all would want it from one.
        order = sorted(missing, key=lambda entry: entry.path)
        _RANDOM.shuffle(order)
        running: dict[Future[None], Transfer] = {}
        moved, moved_at = None, time.monotonic()
        with ThreadPoolExecutor(self._wanted.client.files_at_once) as pool:
            try:
                while True:
                    missing = [entry for entry in order if entry.path not in memory.good]
                    if not missing:
                        return []
                    self._start(pool, running, missing)
                    memory.save_when_due()
                    self._watch.say(self._local_bytes(), hub_failed=self._refused)
                    if not running:
                        turn = self._turn(missing, time.monotonic() - moved_at, progress)
                        if turn:
                            self._tell_unreachable(progress)
                            return turn
                    done, _ = wait(running, TICK_SECONDS, FIRST_COMPLETED)
                    if not running:
                        time.sleep(TICK_SECONDS)
                    for future in done:
                        self._finish(future, running.pop(future), memory, progress)
                        self._throw_away(running)
                    have = self._local_bytes()
                    progress.advance(have, self._watch.in_words())
                    if (have, self._watch.movement()) != moved:
                        moved, moved_at = (have, self._watch.movement()), time.monotonic()
            except BaseException:
                for transfer in running.values():
                    transfer.tally.cancelled = True
                raise

    def _local_bytes(self) -> int:
        return client.present_bytes(self._place.model, self._needed)

    def _start(
        self,
        pool: ThreadPoolExecutor,
        running: dict[Future[None], Transfer],
        missing: list[FileEntry],
    ) -> None:
        under_way = {transfer.entry.path for transfer in running.values()}
        for entry in missing:
            if len(running) >= self._wanted.client.files_at_once:
                return
            if entry.path in under_way or entry.path in self._broken:
                continue
            peer = self._choose(entry, running)
            if peer is not None:
                transfer = Transfer(entry, peer)
                running[pool.submit(self._take, transfer)] = transfer

    def _choose(self, entry: FileEntry, running: dict[Future[None], Transfer]) -> Seen | None:
        """The least busy of those who have it; of equals a random one."""
        now = time.monotonic()
        mine: dict[str, int] = {}
        for transfer in running.values():
            mine[transfer.peer.peer.name] = mine.get(transfer.peer.peer.name, 0) + 1
        found = [
            seen
            for seen in self._watch.answering()
            if entry.sha256 in seen.files
            and self._busy_until.get(seen.peer.name, 0) <= now
            # Of one that was too busy, one file is asked for at a time.
            and not (seen.peer.name in self._busy and mine.get(seen.peer.name))
        ]
        _RANDOM.shuffle(found)
        return min(
            found,
            key=lambda seen: max(seen.uploads, mine.get(seen.peer.name, 0)),
            default=None,
        )

    def _take(self, transfer: Transfer) -> None:
        origins = self._origins.setdefault(transfer.entry.path, peers.Origins(set()))
        peers.take(
            transfer.peer.peer,
            self._watch.model,
            self._watch.tokens,
            transfer.entry,
            self._place.model,
            origins,
            transfer.tally,
        )

    def _finish(
        self, future: Future[None], transfer: Transfer, memory: Memory, progress: Progress
    ) -> None:
        name, path = transfer.peer.peer.name, transfer.entry.path
        try:
            future.result()
        except hashing.Cancelled:
            return  # a liar's
        except peers.PeerBusy:
            self._busy.add(name)
            pause = BUSY_SECONDS + BUSY_SECONDS_A_PEER * len(self._watch.all())
            self._busy_until[name] = time.monotonic() + pause * _RANDOM.uniform(0.5, 1.5)
        except peers.PeerFailed as error:
            progress.log(f"peer {transfer.peer.peer.place}: {error}")
            self._failed(name)
        except peers.WrongBytes as error:
            if error.alone:
                why = f"it gave wrong bytes for {path} (SHA-256 {error.found})"
                self._liars.add(name)
                self._drop(transfer.peer.peer, why, progress)
            else:
                progress.log(f"{path} was pieced together from several and is wrong: anew from one")
        else:
            verdict = integrity.Verdict(
                transfer.entry, None, integrity.stat_of(self._place.model / path)
            )
            verdict = integrity.with_header(self._place.model, verdict)
            self._failures[name] = self._stalls[name] = 0
            self._busy.discard(name)
            if verdict.problem is not None:
                self._broken.add(path)
                progress.log(f"{path} {verdict.problem}")
                return
            memory.add(verdict)
            self.account.files += 1
            sent = self.account.bytes_from
            sent[name] = sent.get(name, 0) + transfer.entry.size_bytes

    def _failed(self, name: str) -> None:
        """Transfers that broke off together, as when the peer reboots, are one failure."""
        now = time.monotonic()
        if self._busy_until.get(name, 0.0) <= now:
            count = self._failures.get(name, 0) + 1
            self._failures[name] = count % MOST_FAILURES
            self._busy_until[name] = now + AGAIN_SECONDS * count
            if count == MOST_FAILURES:
                self._watch.leave_alone(name, LEFT_SECONDS)

    def _throw_away(self, running: dict[Future[None], Transfer]) -> None:
        """Whatever pieces are of peers that gave wrong bytes."""
        for transfer in running.values():
            if transfer.peer.peer.name in self._liars:
                transfer.tally.cancelled = True
        under_way = {transfer.entry.path for transfer in running.values()}
        for path, origins in self._origins.items():
            if origins.names & self._liars and path not in under_way:
                self._partial(path).unlink(missing_ok=True)
                origins.names, origins.unknown = set(), False

    def _partial(self, path: str) -> Path:
        return self._place.model / (path + client.PARTIAL)

    def _drop(self, peer: Peer, why: str, progress: Progress, seconds: float = math.inf) -> None:
        self._watch.leave_alone(peer.name, seconds)
        self.account.dropped[peer.name] = why
        how = "dropped" if math.isinf(seconds) else f"left alone for {seconds:.0f} s"
        progress.log(f"peer {peer.place} is {how}: {why}")

    # --- whose turn it is at the hub

    def _turn(
        self, missing: list[FileEntry], still_seconds: float, progress: Progress
    ) -> list[FileEntry]:
        """What this host is to bring from the hub now; empty: others bring it, or verify it."""
        if still_seconds > self._wanted.client.stall_timeout_seconds + STALL_SPARE_SECONDS:
            # Somebody who has them does not give them, or who pulls them does not get on.
            for seen in self._watch.answering():
                seconds = LEFT_SECONDS * 2 ** self._stalls[seen.peer.name]
                self._stalls[seen.peer.name] += 1
                self._drop(seen.peer, "nothing came from it", progress, seconds)
            return missing
        if not self._watch.asked_all():
            return []
        alive = self._watch.answering()
        if self._refused is not None and turns.somebody_pulls(alive):
            return []
        works = turns.hub_works(self._watch.all())
        return turns.of(missing, alive, self._watch.rank, self._broken, hub_works=works)

    def left_to_others(self, error: HostError, progress: Progress) -> bool:
        """The hub refuses this host: whether another one is getting on there all the same."""
        self._refused = error.why
        if found := turns.somebody_pulls(self._watch.answering()):
            progress.log(f"{error.what}: {error.why} Another host pulls it, and is waited for.")
        return found

    def _tell_unreachable(self, progress: Progress) -> None:
        for line in self.unreachable():
            if line not in self._told:
                self._told.add(line)
                progress.log(line)

    def unreachable(self) -> list[str]:
        """Peers that never answered, and what to do about it."""
        return [
            f"peer {seen.peer.place}: {seen.problem}. If that host is up, a firewall is between: "
            f"let TCP port {seen.peer.port} through between the gpu hosts (docs/models.md)"
            for seen in self._watch.all()
            if seen.problem and not seen.ever
        ]

    # --- while this host brings files from the hub

    def while_at_hub(
        self, memory: Memory, progress: Progress, fetched: list[FileEntry]
    ) -> Callable[[], None]:
        """To be called about once a second: verifies files that are whole, so that others can have
        them. It raises Yielded when others have, or bring, what this host is fetching."""

        self._refused = None
        for entry in fetched:
            stat = integrity.stat_of(self._partial(entry.path))
            if stat is not None and stat.size_bytes >= entry.size_bytes:
                # Killed before it was hashed: the client could only ask for what comes after it.
                self._partial(entry.path).unlink()

        def tick() -> None:
            absent = self._early.look(memory, fetched)
            memory.save_when_due()
            self._watch.say(self._local_bytes(), hub=True)
            alive = self._watch.answering()
            theirs = {sha256 for seen in alive for sha256 in seen.files}
            for entry in absent:
                if entry.sha256 in theirs and entry.path not in self._broken:
                    self._yield(f"{entry.path} is at a peer", progress)
            for seen in alive:
                ahead = seen.hub and seen.peer.rank < self._watch.rank
                if absent and ahead and turns.hub_works(self._watch.all()):
                    self._yield(f"{seen.peer.name} asks it", progress)

        return tick

    def _yield(self, why: str, progress: Progress) -> NoReturn:
        progress.log(f"the hub is left alone: {why} by now")
        raise Yielded

    def after_hub(self, memory: Memory) -> None:
        """Wait for what is being verified; it need not be hashed again."""
        self._early.wait(memory)

    def while_waiting(self, missing: list[FileEntry], why: str) -> Callable[[], bool]:
        """To be called about once a second while the hub gives this host nothing: lets others try
        it. Whether a peer has, by now, one of the missing files."""
        wanted = {entry.sha256 for entry in missing if entry.path not in self._broken}

        def tick() -> bool:
            self._watch.say(self._local_bytes(), hub_failed=why)
            return any(wanted & seen.files for seen in self._watch.answering())

        return tick

    # --- the end

    def publishing(self) -> None:
        """All files are here; for a moment, until the record is written, none can be given."""
        self._watch.say(self._local_bytes(), coming=[entry.sha256 for entry in self._needed])

    def failed(self, why: str) -> None:
        if self._watcher is not None:
            self._watcher.end(hub_failed=why)

    def add_to(self, error: HostError) -> None:
        """The peers' part in a failure of the hub."""
        error.detail += [
            *(f"peer {name}: {why}" for name, why in self.account.dropped.items()),
            *self.unreachable(),
        ]

    def close(self) -> None:
        self._early.close()
        if self._watcher is not None:
            self._watcher.end()

    def as_result(self) -> dict[str, Any]:
        """{files, from: {peer: bytes}, dropped: {peer: why}, unreachable: [line]}"""
        return {
            "files": self.account.files,
            "from": self.account.bytes_from,
            "dropped": self.account.dropped,
            "unreachable": self.unreachable() if self._watcher is not None else [],
        }
