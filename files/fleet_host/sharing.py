"""How this host takes part in a fan-out: its peers, the run's secrets, who may ask it.

/run/llm/fan-out/OWNER--NAME--REVISION.json, root's, readable by the build user, gone at a reboot:
  {model, name, rank, opened_at, pulling, tokens, peers: [{name, rank, address, port}], allowed,
   rate_bytes_per_second}
The deploy writes it on every host before the first of them pulls (share_server.open_for); pulls and
the server read it again when it changes, so that a second run's peers and secret count as well.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import durable, fields, layout
from .errors import SpecError
from .listing import name_problem

if TYPE_CHECKING:
    from pathlib import Path

# A run brings a secret of its own; of two runs at a time, and their killed predecessors, each
# host may know another one.
KEPT_TOKENS = 8
SCHEME = "Fleet-HMAC"


@dataclass(frozen=True)
class Peer:
    """Another host of the inventory with the same model. rank: its place there; the first one that
    pulls is the one that asks the hub."""

    name: str
    rank: int
    address: str
    port: int

    @property
    def place(self) -> str:
        return f"{self.name} ({self.address} port {self.port})"


@dataclass(frozen=True)
class Sharing:
    """One model's fan-out as this host knows it. opened_at: time.monotonic() of the last run that
    asked; pulling: that run is about to have this host pull."""

    model: str
    name: str
    rank: int
    opened_at: float
    pulling: bool
    tokens: tuple[str, ...]
    peers: tuple[Peer, ...]
    allowed: tuple[str, ...]
    rate_bytes_per_second: int | None

    def as_dict(self) -> dict[str, Any]:
        return {
            **vars(self),
            "tokens": list(self.tokens),
            "allowed": list(self.allowed),
            "peers": [dict(vars(peer)) for peer in self.peers],
        }


def directory() -> Path:
    return layout.run_root() / "llm" / "fan-out"


def path_of(model: str) -> Path:
    """model: OWNER--NAME/REVISION, as the directories below models/."""
    return directory() / f"{model.replace('/', '--')}.json"


def check_model(model: str) -> None:
    """SpecError for what is not OWNER--NAME/REVISION."""
    if name_problem(model) or model.count("/") != 1 or any(
        part.startswith(".") for part in model.split("/")
    ):  # fmt: skip
        raise SpecError(f"{model!r} is no model's name", "it is OWNER--NAME/REVISION.", "Fix it.")


def read(model: str) -> Sharing | None:
    """None when no run has asked for it since the host was booted."""
    document = durable.read_object(path_of(model))
    if document is None:
        return None
    try:
        return Sharing(
            model=str(document["model"]),
            name=str(document["name"]),
            rank=int(document["rank"]),
            opened_at=float(document["opened_at"]),
            pulling=bool(document["pulling"]),
            tokens=tuple(str(token) for token in document["tokens"]),
            peers=tuple(peer_of(row) for row in document["peers"]),
            allowed=tuple(str(one) for one in document["allowed"]),
            rate_bytes_per_second=document["rate_bytes_per_second"],
        )
    except (KeyError, TypeError, ValueError):
        return None  # of another version of this program: as if there were none


def alone(model: str) -> Sharing:
    """When nobody has opened this host: a pull that was started by hand, or by an older deploy."""
    return Sharing(model, "", 0, time.monotonic(), False, (), (), (), None)


def peer_of(row: Any) -> Peer:
    if not isinstance(row, dict):
        raise SpecError(f"{row!r} is no peer", "it must be an object.", "Correct it.")
    fields.refuse_unknown(row, {"name", "rank", "address", "port"}, "fan-out")
    return Peer(
        name=fields.text(row, "name"),
        rank=fields.whole(row, "rank"),
        address=fields.text(row, "address"),
        port=fields.whole(row, "port"),
    )


def joined(old: Sharing | None, new: Sharing) -> Sharing:
    """What a further run adds: its peers and secret before those of the runs before it."""
    if old is None:
        return new
    named = {peer.name: peer for peer in (*old.peers, *new.peers)}
    return Sharing(
        **{
            **vars(new),
            "tokens": tuple(dict.fromkeys((*new.tokens, *old.tokens)))[:KEPT_TOKENS],
            "peers": tuple(sorted(named.values(), key=lambda peer: (peer.rank, peer.name))),
            "allowed": tuple(sorted({*new.allowed, *old.allowed})),
        }
    )


def write(sharing: Sharing, group: int) -> None:
    durable.make_directories(directory())
    durable.write_json(path_of(sharing.model), sharing.as_dict(), mode=0o640, gid=group)


# --- the secret, which never travels: each request carries a MAC over itself


def proof(token: str, target: str, offset: int) -> str:
    """The Authorization header of one request: target is its path, offset its first byte."""
    nonce = secrets.token_hex(16)
    return f"{SCHEME} {nonce}:{_mac(token, nonce, target, offset)}"


def is_proven(header: str, tokens: tuple[str, ...], target: str, offset: int) -> bool:
    scheme, _, rest = header.partition(" ")
    nonce, _, found = rest.partition(":")
    if scheme != SCHEME or not nonce or not found.isascii():
        return False
    return any(hmac.compare_digest(found, _mac(token, nonce, target, offset)) for token in tokens)


def _mac(token: str, nonce: str, target: str, offset: int) -> str:
    message = json.dumps([nonce, target, offset]).encode()
    return hmac.new(token.encode(), message, hashlib.sha256).hexdigest()


def from_request(request: dict[str, Any]) -> Sharing:
    """A `fan-out open` request as what it asks this host to do. SpecError."""
    model = fields.text(request, "model")
    check_model(model)
    rows = request.get("peers") or []
    if not isinstance(rows, list):
        raise SpecError("'peers' is no list", "it must hold objects.", "Correct it.")
    return Sharing(
        model=model,
        name=fields.text(request, "name"),
        rank=fields.whole(request, "rank"),
        opened_at=time.monotonic(),
        pulling=request.get("pulling") is True,
        tokens=(fields.text(request, "token"),),
        peers=tuple(peer_of(row) for row in rows),
        allowed=tuple(fields.texts(request, "allowed")),
        rate_bytes_per_second=fields.whole(request, "rate_bytes_per_second", 0) or None,
    )
