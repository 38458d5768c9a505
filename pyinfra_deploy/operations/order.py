"""One host after the other, in the inventory's order: an operator knows which goes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra.api import Host, State


class InInventoryOrder(set["Host"]):
    """Hosts of a run. pyinfra keeps them in a plain set, whose order is another in each run, and
    `_serial` goes through that."""

    def __iter__(self) -> Iterator[Host]:
        found = list(super().__iter__())
        if found:
            known = {name: place for place, name in enumerate(found[0].inventory.hosts)}
            found.sort(key=lambda host: known[host.name])
        return iter(found)


def keep_inventory_order(state: State) -> None:
    """From here on, hosts of this run that go one by one do so in the inventory's order."""
    if not isinstance(state.active_hosts, InInventoryOrder):
        state.active_hosts = InInventoryOrder(state.active_hosts)
