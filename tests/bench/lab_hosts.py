"""Hosts of the lab for a bench, and the hub beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab import hosts, lifecycle
from lab.hub import daemon
from lab.hub.places import hub_directory, wheels_directory
from lab.layout import current_layout
from lab.models.catalogue import make_missing
from lab.plan import Host
from tests.standin import wheel

if TYPE_CHECKING:
    from collections.abc import Sequence


def bring_up(names: Sequence[str]) -> None:
    """These hosts with Debian 12, the models, the stand-in's wheel, and the hub of both."""
    wanted_hosts = [Host(name, "bookworm", ("lab",)) for name in names]
    with hosts.exclusive_as_root("up", install=True):
        for host in lifecycle.bring_up(lifecycle.open_lab(current_layout()), wanted_hosts):
            hosts.wait_ssh(host.name)
    hub = hub_directory()
    make_missing(hub, print)
    wheel.publish(wheels_directory(hub))
    daemon.start(hub, daemon.DEFAULT_ADDRESS)
