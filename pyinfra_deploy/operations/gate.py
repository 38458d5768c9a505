"""The gate of a run: one failed go-live, and no other host of the run is switched."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyinfra.api import Host, State

_closed: WeakKeyDictionary[State, str] = WeakKeyDictionary()


def close(state: State, host: Host) -> None:
    """Record that a go-live failed on `host`. The first failure is the one that is named."""
    _closed.setdefault(state, host.name)


def closed_by(state: State) -> str | None:
    """The host whose go-live failed, or None while none has."""
    return _closed.get(state)
