"""One command of the host program, asked from outside of a deploy: what the host said, or why not.

A host may have an older program, which does not know the command, or none: it is then asked through
this checkout's program, which is not left there. To put it in place is a deploy's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.operations import packing
from pyinfra_deploy.operations.program import (
    ConnectionLost,
    HostRefused,
    call,
    connection_is_dead,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra.api import Host, State

OLDER = ("fleet-host: bad usage", "the host program is not there")


def asked(
    state: State,
    host: Host,
    command: str,
    request: Mapping[str, Any],
    llm_root: str,
    timeout_seconds: int = 120,
) -> dict[str, Any]:
    """{answer} or {refused: {what, why, fix, detail}} or {lost: text}."""
    try:
        answer = _own_or_lent(state, host, command, request, llm_root, timeout_seconds)
    except HostRefused as refusal:
        said = {key: getattr(refusal, key) for key in ("what", "why", "fix", "detail")}
        return {"refused": said}
    except ConnectionLost as error:
        return {"lost": str(error)}
    return {"answer": answer}


def _own_or_lent(
    state: State,
    host: Host,
    command: str,
    request: Mapping[str, Any],
    llm_root: str,
    timeout_seconds: int,
) -> dict[str, Any]:
    try:
        return call(
            state, host, command, request, llm_root=llm_root, timeout_seconds=timeout_seconds
        )
    except HostRefused as refusal:
        if refusal.what not in OLDER:
            raise
    except ConnectionLost:
        # Where there is no program, the shell may be gone before its input is written, which looks
        # alike. Every command that is asked from outside may run twice.
        if connection_is_dead(host):
            raise
    return call(
        state, host, command, request, llm_root=llm_root, timeout_seconds=timeout_seconds,
        borrowing=packing.host_program(),
    )  # fmt: skip
