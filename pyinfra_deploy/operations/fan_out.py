"""A model from the fleet's own hosts: every host that has or pulls it is opened to the others,
before the first of them pulls.

The hosts then find out by themselves who has which file, and whose turn it is at the hub
(files/fleet_host/swarm.py); nothing of that is decided here, so it goes on when this machine does
not.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gevent.lock import BoundedSemaphore
from gevent.pool import Pool
from pyinfra import logger

from pyinfra_deploy.operations.program import LOST_CONNECTION, ConnectionLost, HostRefused, call
from pyinfra_deploy.operations.wheelhouse import addresses_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyinfra.api import Host, State

    from pyinfra_deploy.planning.host_plan import HostPlan
    from pyinfra_deploy.settings.schema import Settings

STEP = "fan-out"
# The server ends by itself after this time without a question; pulls ask every second or so.
IDLE_SECONDS = 40
RENEW_SECONDS = 30.0
OPENED_AT_ONCE = 20
# Hosts outside of the run that are asked for the model, when none of it has one.
MOST_OTHERS = 4


@dataclass
class Shared:
    """What the hosts of one run share. pulling: hosts that will pull, by model; opened: those of
    them that have been opened to each other."""

    lock: BoundedSemaphore = field(default_factory=BoundedSemaphore)
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    pulling: dict[str, set[Host]] = field(default_factory=dict)
    opened: dict[str, set[Host]] = field(default_factory=dict)


_runs: WeakKeyDictionary[State, Shared] = WeakKeyDictionary()


def model_of(pull: Mapping[str, Any]) -> str:
    """OWNER--NAME/DIRECTORY, as below models/ on hosts."""
    return f"{str(pull['model_id']).replace('/', '--')}/{pull['directory']}"


def announce(state: State, host: Host, plan: HostPlan) -> None:
    """Say, while the run is prepared, that this host is going to pull."""
    if plan.pull is not None and plan.pull.get("fan_out"):
        shared = _runs.setdefault(state, Shared())
        # What pyinfra calls `host` while it prepares stands for whichever host is its turn.
        itself = state.inventory.get_host(host.name)
        shared.pulling.setdefault(model_of(plan.pull), set()).add(itself)


def open_hosts(state: State, host: Host, plan: HostPlan, renew: Callable[[], None]) -> None:
    """Before a host pulls: open all that have or will pull its model, once a run.

    Fails nothing: a host that cannot be opened is named, and what nobody gives is the hub's.
    """
    if plan.pull is None or not plan.pull.get("fan_out"):
        return
    announce(state, host, plan)
    shared = _runs[state]
    while not shared.lock.acquire(timeout=RENEW_SECONDS):
        renew()
    try:
        model = model_of(plan.pull)
        if host not in shared.opened.get(model, set()):
            # Of one that nobody announced, the others learn now.
            shared.opened[model] = set(shared.pulling[model])
            _Opening(state, shared, plan, model).run()
    finally:
        shared.lock.release()


@dataclass
class _Opening:
    state: State
    shared: Shared
    plan: HostPlan
    model: str

    def run(self) -> None:
        members = [one for one in self.state.inventory if self._shares(one)]
        self.ranks = {one: rank for rank, one in enumerate(members)}
        self.allowed = sorted({address for one in members for address in all_addresses(one)})
        pulling = self.shared.pulling[self.model]
        failed = self.state.failed_hosts
        pulls = [one for one in members if one in pulling and one not in failed]
        others = [one for one in members if one not in pulling and one not in failed]
        givers = self._open_each([one for one in others if one.connected], pulls, pulling=False)
        if not givers:
            givers = self._open_some([one for one in others if not one.connected], pulls)
        peers = [*pulls, *givers]
        self._open_each(pulls, peers, pulling=True)

    def _shares(self, host: Host) -> bool:
        """Whether the host's settings ask for the same locked model, and let it share."""
        settings: Settings | None = host.data.get("settings")
        mine = self.plan.settings.model
        if "gpu" not in host.groups or settings is None or settings.model is None or mine is None:
            return False
        return settings.model.fan_out.enabled and settings.model.lock == mine.lock

    def _open_some(self, others: list[Host], peers: list[Host]) -> list[Host]:
        """Hosts outside of the run, in the inventory's order, until one has the model."""
        for host in others[:MOST_OTHERS]:
            try:
                host.connect(reason="to share its model", show_errors=False)
            except LOST_CONNECTION as error:
                logger.debug(f"{host.print_prefix}{error}")
            if host.connected and (found := self._open_each([host], peers, pulling=False)):
                return found
        return []

    def _open_each(self, hosts: Iterable[Host], peers: list[Host], *, pulling: bool) -> list[Host]:
        """The hosts that have something to give, or will."""
        wanted = list(hosts)
        rows = [row for one in peers if (row := self._peer(one))]
        answers = Pool(OPENED_AT_ONCE).map(lambda one: self._open(one, rows, pulling), wanted)
        return [one for one, opened in zip(wanted, answers, strict=True) if opened]

    def _peer(self, host: Host) -> dict[str, Any] | None:
        address = address_of(host)
        if address is None:
            return None
        port = host.data.settings.model.fan_out.port
        return {"name": host.name, "rank": self.ranks[host], "address": address, "port": port}

    def _open(self, host: Host, peers: list[dict[str, Any]], pulling: bool) -> bool:
        settings: Settings = host.data.settings
        assert settings.model is not None
        rate = settings.model.fan_out.rate_mb_per_second
        request = {
            "model": self.model,
            "name": host.name,
            "rank": self.ranks[host],
            "pulling": pulling,
            "token": self.shared.token,
            "peers": peers,
            "allowed": self.allowed,
            "rate_bytes_per_second": rate * 1_000_000 if rate else None,
            "address": address_of(host),
            "port": settings.model.fan_out.port,
            "idle_seconds": IDLE_SECONDS,
        }
        try:
            answer = call(self.state, host, "fan-out open", request, llm_root=settings.llm_root)
        except (HostRefused, ConnectionLost) as error:
            why = " ".join(error.lines()[:2]) if isinstance(error, HostRefused) else str(error)
            if pulling or host in self.state.active_hosts:
                self._warn(host, why)
            return False
        if answer.get("state") == "closed":
            self._warn(host, str(answer.get("why")))
        return answer.get("state") == "open"

    def _warn(self, host: Host, why: str) -> None:
        logger.warning(f"{host.print_prefix}gives no model to other hosts in this run: {why}")


def told(host: Host, result: Mapping[str, Any]) -> None:
    """What a pull's result says of its peers: who gave the model, and who is to be mended."""
    peers = result.get("peers")
    if not isinstance(peers, dict):
        return
    givers = peers.get("from") or {}
    if givers:
        total = sum(int(count) for count in givers.values())
        names = ", ".join(sorted(givers))
        host.log(f"model: {total / 1e9:.2f} GB came from {names}", log_func=logger.info)
    for name, why in (peers.get("dropped") or {}).items():
        logger.warning(f"{host.print_prefix}left {name} out: {why}. See `fleet model verify`.")
    for line in peers.get("unreachable") or []:
        logger.warning(f"{host.print_prefix}{line}")


def address_of(host: Host) -> str | None:
    """Where others reach the host: storage_address, else its first address by the inventory."""
    found = all_addresses(host)
    return found[0] if found else None


def all_addresses(host: Host) -> list[str]:
    """Every address that the host may ask from, the one at which it gives first."""
    settings: Settings = host.data.settings
    own = [settings.storage_address] if settings.storage_address else []
    return [*own, *(one for one in addresses_of(host) if one not in own)]
