"""Wheels from the fleet's own first host: downloaded there once, served to the others while they
install.

A host that installs asks here for the place of its wheels. The first to ask has the first gpu host
of the inventory download them and open its server; everybody else waits for that.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gevent.lock import BoundedSemaphore
from pyinfra import logger

from pyinfra_deploy.operations.jobs import job_result
from pyinfra_deploy.operations.program import (
    LOST_CONNECTION,
    ConnectionLost,
    HostRefused,
    call,
    report_refusal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyinfra.api import Host, State

    from pyinfra_deploy.planning.wanted import Environment

JOB = "wheels"
STEP = "wheels"
# The server ends by itself after this time without a request. A host asks for it again before each
# environment; between that and its first request there is a `python -m venv`.
IDLE_SECONDS = 60
RENEW_SECONDS = 30.0
# How long wheels stay that another run has asked for: no run installs from them for as long.
KEEP_SECONDS = 86_400


@dataclass
class Shared:
    """What the hosts of one run share: who serves, and which wheels it has by now."""

    lock: BoundedSemaphore = field(default_factory=BoundedSemaphore)
    wanted: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    gathered: set[str] = field(default_factory=set)
    server: Host | None = None
    has_runtime: bool = False
    passed_over: set[str] = field(default_factory=set)
    # Why there are no wheels in this run; not tried again for each host that waits.
    failed: HostRefused | None = None


_runs: WeakKeyDictionary[State, Shared] = WeakKeyDictionary()


def announce(state: State, environment: Environment) -> None:
    """Say, while the run is prepared, which wheels some host is going to need."""
    shared = _runs.setdefault(state, Shared())
    shared.wanted |= {str(wheel["sha256"]): wheel for wheel in environment.wheels}
    shared.has_runtime |= "/runtimes/" in environment.path


def place_for(
    state: State, host: Host, environment: Environment, llm_root: str, renew: Callable[[], None]
) -> str | None:
    """The directory or URL for the host to install from; None, reported, when there is none."""
    announce(state, environment)
    shared = _runs[state]
    while not shared.lock.acquire(timeout=RENEW_SECONDS):
        renew()
    try:
        return _place(state, host, environment, llm_root, shared, renew)
    except HostRefused as refusal:
        report_refusal(host, STEP, refusal)
    except ConnectionLost as error:
        host.log_styled(
            f"{STEP}: {_name(shared.server)}, which serves the wheels, cannot be reached "
            f"({error}). Run the same command again.",
            fg="red",
            log_func=logger.error,
        )
    finally:
        shared.lock.release()
    return None


def _place(
    state: State,
    host: Host,
    environment: Environment,
    llm_root: str,
    shared: Shared,
    renew: Callable[[], None],
) -> str:
    if shared.failed is not None:
        raise shared.failed
    directory = f"{llm_root}/wheels"
    for server in _servers(state, shared):
        address = address_of(server)
        try:
            if not set(shared.wanted) <= shared.gathered:
                _gather(state, server, environment, directory, llm_root, shared, renew)
            if server is host:
                return directory
            return _open(state, server, address, directory, environment, llm_root)
        except ConnectionLost as error:
            _pass_over(shared, server, f"it cannot be reached ({error})")
        except HostRefused as refusal:
            if server in state.active_hosts:
                # Its own run has ended in the same words; another would fail in the same way.
                refusal.what = f"{server.name} has no wheels to serve: {refusal.what}"
                shared.failed = refusal
                raise
            _pass_over(shared, server, f"{refusal.what}: {refusal.why}")
    raise HostRefused(
        {
            "what": "no host of the inventory can serve the wheels",
            "why": f"tried, in the inventory's order: {', '.join(sorted(shared.passed_over))}",
            "fix": "bring one of them back and run the same command again, or set "
            "runtime.wheelhouse to a path or a url",
        }
    )


def _servers(state: State, shared: Shared) -> Iterator[Host]:
    """Hosts that may serve, the one that does already first, then in the inventory's order."""
    if shared.server is not None and shared.server.name not in shared.passed_over:
        yield shared.server
    for server in state.inventory:
        if "gpu" not in server.groups or server.name in shared.passed_over:
            continue
        if server in state.failed_hosts:
            _pass_over(shared, server, "its own run has failed, or it could not be reached")
            continue
        if not server.connected:
            # Not of this run (--limit), or down.
            try:
                server.connect(reason="to serve wheels", show_errors=False)
            except LOST_CONNECTION as error:
                logger.debug(f"{server.print_prefix}{error}")
        if not server.connected:
            _pass_over(shared, server, "it cannot be reached")
            continue
        shared.server, shared.gathered = server, set()
        yield server


def _pass_over(shared: Shared, server: Host, why: str) -> None:
    shared.passed_over.add(server.name)
    shared.server = None
    shared.gathered = set()
    logger.warning(
        f"{server.print_prefix}does not serve the wheels of this run: {why}. The next gpu host of "
        "the inventory does, and downloads them."
    )


def _gather(
    state: State,
    server: Host,
    environment: Environment,
    directory: str,
    llm_root: str,
    shared: Shared,
    renew: Callable[[], None],
) -> None:
    wheels = [shared.wanted[sha256] for sha256 in sorted(shared.wanted)]
    spec = {
        "directory": directory,
        "wheels": [dict(wheel) for wheel in wheels],
        "index_url": environment.job["index_url"],
        "extra_index_urls": environment.job["extra_index_urls"],
        "find_links": environment.job["find_links"],
        # With a whole runtime's wheels, those of an older one have had their time; but a run for
        # other hosts, which holds no lease of this one, may be serving its hosts from them.
        "remove_others": shared.has_runtime,
        "keep_seconds": KEEP_SECONDS,
    }
    result = job_result(
        state, server, kind="wheels", job_id=JOB, spec=spec, llm_root=llm_root, step=STEP,
        renew=renew,
    )  # fmt: skip
    shared.gathered = set(shared.wanted)
    server.log(
        f"{STEP}: {result.get('downloaded', 0)} of {result.get('wheels', 0)} downloaded, "
        f"{result.get('size_bytes', 0) / 1e9:.2f} GB in {result.get('seconds', 0)} s",
        log_func=logger.info,
    )


def _open(
    state: State,
    server: Host,
    address: str,
    directory: str,
    environment: Environment,
    llm_root: str,
) -> str:
    request = {
        "directory": directory,
        "address": address,
        "port": environment.serve_port,
        "allowed": sorted({found for one in state.inventory for found in addresses_of(one)}),
        "idle_seconds": IDLE_SECONDS,
    }
    answer = call(state, server, "wheels serve", request, llm_root=llm_root)
    return str(answer["url"])


def _name(server: Host | None) -> str:
    return server.name if server is not None else "the host"


def addresses_of(host: Host) -> list[str]:
    """The host's addresses by the inventory, IPv4 first; none when its name does not resolve."""
    name = str(host.data.get("ssh_hostname") or host.name)
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    found.sort(key=lambda row: row[0] != socket.AF_INET)
    return list(dict.fromkeys(str(row[4][0]) for row in found))


def address_of(host: Host) -> str:
    """The address at which a host serves. HostRefused when its name does not resolve here."""
    found = addresses_of(host)
    if not found:
        name = host.data.get("ssh_hostname") or host.name
        raise HostRefused(
            {
                "what": f"the address of {host.name} is not known",
                "why": f"{name} does not resolve on this machine, and the other hosts are to reach "
                "it at an address",
                "fix": "write ansible_host with an IP address in the inventory",
            }
        )
    return found[0]
