"""What operations are made of: functions that run on a host's turn and report its refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra import logger
from pyinfra.api import FunctionCommand

from pyinfra_deploy.operations import lease
from pyinfra_deploy.operations.program import ConnectionLost, HostRefused, call, report_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from pyinfra.api import Host, State
    from pyinfra.api.command import PyinfraCommand

    Commands = Generator[PyinfraCommand, None, None]


def on_host(function: Callable[[State, Host], bool]) -> FunctionCommand:
    # pyinfra passes state and host by these names, and takes a False for a failed host.
    def run(state: State, host: Host) -> bool:
        return function(state, host)

    return FunctionCommand(run, (), {})


def lease_renewal(state: State, host: Host, llm_root: str) -> Callable[[], None]:
    return lambda: lease.renew(state, host, llm_root=llm_root)


def answer_of(
    state: State,
    host: Host,
    step: str,
    command: str,
    spec: Mapping[str, Any],
    llm_root: str,
    timeout_seconds: int = 300,
) -> dict[str, Any] | None:
    """The program's answer, or None after its refusal has been reported."""
    try:
        return call(
            state,
            host,
            command,
            spec,
            llm_root=llm_root,
            timeout_seconds=timeout_seconds,
        )
    except HostRefused as refusal:
        report_refusal(host, step, refusal)
    except ConnectionLost as error:
        host.log_styled(
            f"{step}: the connection to the host was lost ({error}). Run the same command again: "
            "it picks up where this one stopped.",
            fg="red",
            log_func=logger.error,
        )
    return None
