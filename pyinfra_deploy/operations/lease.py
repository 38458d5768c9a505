"""One run at a time on a host: the lease, taken by the first change, given back at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra import logger
from pyinfra.api.state import BaseStateCallback

from pyinfra_deploy.operations.program import (
    ConnectionLost,
    HostRefused,
    call,
    reconnecting,
    report_refusal,
)
from pyinfra_deploy.operations.run import is_dead_run_of_this_machine, this_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra.api import Host, State

# Longer than any step takes between two renewals. A killed run of the same machine is noticed at
# once by its process number; only another machine has to wait this long.
TTL_SECONDS = 900

_held: dict[str, str] = {}


def acquire(
    state: State,
    host: Host,
    *,
    llm_root: str,
    generation_seen: int | None,
    lease_seen: Mapping[str, Any] | None,
    installing: bytes | None = None,
) -> bool:
    """Take the host's lease for this run; False when another run holds it, which is reported.

    generation_seen: None without a plan, which another run could have outdated.
    installing: the host program, where it is missing or another; in place once the lease is held.
    """
    spec = {
        **this_run().as_spec(),
        "ttl_seconds": TTL_SECONDS,
        "generation_seen": generation_seen,
    }
    if lease_seen and is_dead_run_of_this_machine(lease_seen):
        spec["steal_run"] = lease_seen["run"]
        host.log(
            f"an earlier run of this machine ({lease_seen.get('owner')}) was killed: taking over"
        )
    try:
        call(state, host, "lease acquire", spec, llm_root=llm_root, installing=installing)
    except HostRefused as refusal:
        report_refusal(host, "lease", refusal)
        return False
    except ConnectionLost as error:
        host.log_styled(f"lease: {error}; run again", fg="red", log_func=logger.error)
        return False
    _held[host.name] = llm_root
    if not any(isinstance(handler, ReleaseOnFailure) for handler in state.callback_handlers):
        state.add_callback_handler(ReleaseOnFailure())
    return True


def renew(state: State, host: Host, *, llm_root: str) -> None:
    """Push the lease's expiry away; a lost lease is said, and the next change finds out."""
    if host.name not in _held:
        return
    spec = {**this_run().as_spec(), "ttl_seconds": TTL_SECONDS}
    try:
        call(state, host, "lease renew", spec, llm_root=llm_root)
    except (HostRefused, ConnectionLost) as error:
        host.log_styled(f"lease not renewed: {error}", fg="yellow", log_func=logger.warning)


def release(state: State, host: Host) -> None:
    """Give the lease back; it expires by itself when this fails."""
    llm_root = _held.pop(host.name, None)
    if llm_root is None:
        return
    spec = {**this_run().as_spec()}
    try:
        call(state, host, "lease release", spec, llm_root=llm_root, timeout_seconds=30)
    except (HostRefused, ConnectionLost) as error:
        host.log_styled(f"lease not given back: {error}", fg="yellow", log_func=logger.warning)


class ReleaseOnFailure(BaseStateCallback):
    """pyinfra drops a failed host from the rest of the run, the releasing step included, and ends
    the whole run at Ctrl-C, of which it says only that it disconnects."""

    @staticmethod
    def operation_host_error(
        state: State, host: Host, op_hash: str, retry_count: int = 0, max_retries: int = 0
    ) -> None:
        del op_hash, retry_count, max_retries
        release(state, host)

    @staticmethod
    def host_disconnect(state: State, host: Host) -> None:
        # pyinfra's disconnect leaves the connection itself open, and tells of it as connected.
        if not reconnecting(host):
            release(state, host)
