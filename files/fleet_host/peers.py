"""Asking another host what it has of a model, and taking a file from it.

A file grows as X.incomplete beside where it belongs, like the hub client's own partial files, so
that either goes on where the other stopped. It is hashed while it arrives, and gets its name only
when its SHA-256 is the locked one.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import durable, sharing
from .client import PARTIAL
from .hashing import BUFFER_BYTES, Cancelled, Tally

if TYPE_CHECKING:
    from pathlib import Path

    from .listing import FileEntry
    from .sharing import Peer

ASK_SECONDS = 5.0
# The whole of an answer, however steadily its bytes drip in: 200 kB for a model of 3000 files.
ANSWER_SECONDS = 10.0
# A peer that sends nothing for so long is taken for gone. Longer than a disk takes to wake up.
SILENCE_SECONDS = 20.0
# And one that takes so long for a buffer of 1 MiB (3.5 kB/s) is as good as gone.
BUFFER_SECONDS = 300.0
LARGEST_ANSWER_BYTES = 4 << 20


class PeerFailed(Exception):
    """The peer did not give what was asked for; the message says why, for a person to read."""


class PeerBusy(Exception):
    """It serves as many as it can: another one, or later."""


class WrongBytes(Exception):
    """The file is whole and not the locked one. alone: every byte of it came from this peer."""

    def __init__(self, found: str, *, alone: bool) -> None:
        super().__init__(found)
        self.found = found
        self.alone = alone


@dataclass
class Origins:
    """Which peers a partial file's bytes came from; None: bytes of before this process too."""

    names: set[str]
    unknown: bool = False


@dataclass
class Account:
    """What came from peers, for the job's result."""

    files: int = 0
    bytes_from: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)


class _TimedSocket(socket.socket):
    """A socket's own time-out is for each piece that comes, so that drops keep a reader for ever.
    silence_seconds: for each piece. deadline: for all that is read until it is set anew."""

    silence_seconds: float
    deadline: float

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(min(self.silence_seconds, left))
        return super().recv_into(*arguments, **options)


class _Connection(http.client.HTTPConnection):
    """Of one request. timeout: for silence. seconds: for the answer, or each buffer of it. source:
    the address to ask from."""

    def __init__(self, peer: Peer, timeout: float, seconds: float, source: str | None) -> None:
        here = (source, 0) if source else None
        super().__init__(peer.address, peer.port, timeout=timeout, source_address=here)
        self._silence_seconds, self._seconds = timeout, seconds
        self._timed: _TimedSocket | None = None

    def connect(self) -> None:
        super().connect()
        self.sock = self._timed = _TimedSocket(fileno=self.sock.detach())
        self._timed.silence_seconds = self._silence_seconds
        self.give_time()

    def give_time(self) -> None:
        """For what is read from here on."""
        if self._timed is not None:
            self._timed.deadline = time.monotonic() + self._seconds


def _request(
    connection: http.client.HTTPConnection,
    tokens: tuple[str, ...],
    target: str,
    offset: int,
) -> http.client.HTTPResponse:
    """The answer to the first secret that the peer knows. PeerFailed when it knows none."""
    for token in tokens:
        headers = {"Authorization": sharing.proof(token, target, offset)}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        if response.status != http.client.FORBIDDEN:
            return response
        response.read(LARGEST_ANSWER_BYTES)
    raise PeerFailed("it does not know this run's secret: another run has opened it")


def ask(
    peer: Peer, model: str, tokens: tuple[str, ...], *, source: str | None = None
) -> dict[str, Any]:
    """What a peer has and does (share_server). OSError, HTTPException, PeerFailed."""
    connection = _Connection(peer, ASK_SECONDS, ANSWER_SECONDS, source)
    try:
        response = _request(connection, tokens, f"/{model}", 0)
        body = response.read(LARGEST_ANSWER_BYTES)
        if response.status != http.client.OK:
            raise PeerFailed(f"it answered {response.status}")
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise PeerFailed(f"its answer cannot be read ({error})") from error
    finally:
        connection.close()
    files = document.get("files") if isinstance(document, dict) else None
    coming = document.get("coming") if isinstance(document, dict) else None
    if not isinstance(files, list) or not isinstance(coming, list):
        raise PeerFailed("its answer is of another version of this program")
    return {
        "files": {one for one in files if isinstance(one, str)},
        "coming": {one for one in coming if isinstance(one, str)},
        "pulling": document.get("pulling") is True,
        "starting": document.get("starting") is True,
        "hub": document.get("hub") is True,
        "hub_failed": document.get("hub_failed"),
        "bytes": document.get("bytes"),
        "hashed": document.get("hashed"),
        "uploads": document.get("uploads"),
    }


def take(
    peer: Peer,
    model: str,
    tokens: tuple[str, ...],
    entry: FileEntry,
    directory: Path,
    origins: Origins,
    tally: Tally,
) -> None:
    """Bring one file into the directory, durable and with the locked SHA-256.

    PeerBusy, PeerFailed (what has come so far stays), WrongBytes (nothing stays), OSError of this
    host's disk, Cancelled. tally counts the file's bytes that are here.
    """
    goal = directory / entry.path
    with durable.writing(goal, entry.size_bytes):
        durable.make_directories(goal.parent)
        _take(peer, model, tokens, entry, goal, origins, tally)


def _take(
    peer: Peer,
    model: str,
    tokens: tuple[str, ...],
    entry: FileEntry,
    goal: Path,
    origins: Origins,
    tally: Tally,
) -> None:
    partial = goal.with_name(goal.name + PARTIAL)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(partial, flags, 0o644)
    try:
        digest = hashlib.sha256()
        if os.fstat(descriptor).st_size > entry.size_bytes:
            os.ftruncate(descriptor, 0)
        have = _hash_present(descriptor, digest, tally)
        if have and not origins.names:
            origins.unknown = True
        if have < entry.size_bytes:
            _receive(peer, model, tokens, entry, descriptor, digest, have, origins, tally)
        found = digest.hexdigest()
        if found != entry.sha256:
            partial.unlink()
            alone = origins.names == {peer.name} and not origins.unknown
            origins.names, origins.unknown = set(), False
            tally.count = 0
            raise WrongBytes(found, alone=alone)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.replace(goal)
    durable.fsync_directory(goal.parent)


def _hash_present(descriptor: int, digest: Any, tally: Tally) -> int:
    """Hash what an interrupted transfer has left; how many bytes that is."""
    buffer = bytearray(BUFFER_BYTES)
    view, done = memoryview(buffer), 0
    while count := os.readv(descriptor, [buffer]):
        digest.update(view[:count])
        done += count
        _count(tally, done)
    return done


def _receive(
    peer: Peer,
    model: str,
    tokens: tuple[str, ...],
    entry: FileEntry,
    descriptor: int,
    digest: Any,
    have: int,
    origins: Origins,
    tally: Tally,
) -> None:
    connection = _Connection(peer, SILENCE_SECONDS, BUFFER_SECONDS, None)
    try:
        try:
            response = _request(connection, tokens, f"/{model}/{entry.sha256}", have)
        except (OSError, http.client.HTTPException) as error:
            raise PeerFailed(in_words(error)) from error
        if response.status == http.client.SERVICE_UNAVAILABLE:
            raise PeerBusy
        expected = http.client.PARTIAL_CONTENT if have else http.client.OK
        if response.status != expected or response.length != entry.size_bytes - have:
            raise PeerFailed(
                f"it answered {response.status} with {response.length} bytes for {entry.path}"
            )
        origins.names.add(peer.name)
        buffer = bytearray(BUFFER_BYTES)
        view = memoryview(buffer)
        while have < entry.size_bytes:
            try:
                connection.give_time()
                count = response.readinto(view)
            except (OSError, http.client.HTTPException) as error:
                raise PeerFailed(f"{in_words(error)} in the middle of {entry.path}") from error
            if not count:
                raise PeerFailed(f"it closed the connection in the middle of {entry.path}")
            digest.update(view[:count])
            _write(descriptor, view[:count])
            have += count
            _count(tally, have)
    finally:
        connection.close()


def _write(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]


def _count(tally: Tally, done: int) -> None:
    tally.count = done
    if tally.cancelled:
        raise Cancelled


def in_words(error: BaseException) -> str:
    """Why a connection failed, as an operator would say it."""
    if isinstance(error, ConnectionRefusedError):
        return "it refuses the connection"
    if isinstance(error, (socket.timeout, TimeoutError)):
        return "it does not answer"
    if isinstance(error, ConnectionResetError):
        return "it broke the connection off"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
