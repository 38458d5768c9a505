"""Going back to a release that a host has kept: nothing is pulled, built or staged for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra.api import operation

from pyinfra_deploy.operations import lease, packing
from pyinfra_deploy.operations.calling import answer_of, on_host
from pyinfra_deploy.operations.gateway_steps import configured
from pyinfra_deploy.operations.go_live import (
    STEP,
    go_back,
    go_live_spec,
    run_go_live,
    said_of,
    tell,
    was_lost,
)
from pyinfra_deploy.operations.program import ConnectionLost, HostRefused, call, report_refusal
from pyinfra_deploy.planning.hold import read_hold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyinfra.api import Host, State

    from pyinfra_deploy.operations.calling import Commands
    from pyinfra_deploy.planning.hold import Hold
    from pyinfra_deploy.settings.schema import Settings

STEP_BACK = "rollback"


@operation()
def roll_back(
    settings: Settings,
    target: Mapping[str, Any],
    verification: Mapping[str, Any] | None,
    gateway_text: Callable[[Hold | None], str | None],
) -> Commands:
    """Hold the host at a kept release, and go live with it where it does not run. A release that
    fails its gates is gone back from, and the hold is given up again.

    + settings: the host's
    + target: {kept, rejected, who, why, switch}; switch: whether it runs another one now
    + verification: input of `verify` for a host with a gateway; its model is the kept release's
    + gateway_text: makes the gateway service's configuration for what is then held

    **Example:**

    .. code:: python

        roll_back(name="Roll back", settings=settings, target=target, verification=None,
                  gateway_text=lambda held: None)
    """

    def back(state: State, host: Host) -> bool:
        root, name = settings.llm_root, settings.engine.name
        taken = lease.acquire(
            state, host, llm_root=root, generation_seen=None, lease_seen=None,
            installing=_program_where_another(state, host, root),
        )  # fmt: skip
        if not taken:
            return False
        request = {key: target[key] for key in ("kept", "rejected", "who", "why")}
        try:
            held = call(state, host, "hold begin", {"engine": name, **request}, llm_root=root)
        except HostRefused as refusal:
            report_refusal(host, STEP_BACK, refusal)
            tell(host, error={"step": STEP_BACK, **said_of(refusal)}, release=target["kept"])
            return False
        except ConnectionLost as error:
            host.log(f"{STEP_BACK}: the connection was lost ({error})")
            return False
        hold = read_hold(held.get("hold"))
        text = gateway_text(hold)
        if not target["switch"]:
            # Also here: a rollback that was killed may have left it as it was for the other one.
            if not configured(state, host, settings, text):
                return False
            tell(host, result={"release": target["kept"], "changed": False})
            return True
        served = hold.served_model_name if hold is not None else ""
        return _switched(state, host, settings, target["kept"], served, verification, text)

    yield on_host(back)


def _program_where_another(state: State, host: Host, llm_root: str) -> bytes | None:
    """This checkout's host program, where the host has another one: it may know neither holds nor
    gates, and would pass over what it does not know."""
    try:
        has = call(state, host, "version", {}, llm_root=llm_root).get("program")
    except HostRefused:
        has = None
    except ConnectionLost:
        return None  # which the next call says
    return None if has == packing.host_program_digest() else packing.host_program()


def _switched(
    state: State,
    host: Host,
    settings: Settings,
    kept: str,
    served: str,
    verification: Mapping[str, Any] | None,
    gateway_text: str | None,
) -> bool:
    # It has been asked about, examined and proven when it came; a proof that still holds is quick.
    spec = go_live_spec(settings, kept, served) | {"ask_parser": False, "fitness": None}
    result = run_go_live(state, host, settings, spec)
    if result is None:
        # Of a go-live that nobody has seen end, the hold is what a deploy then goes by.
        if not was_lost(host):
            _give_up_hold(state, host, settings)
        return False
    if not configured(state, host, settings, gateway_text):
        _give_up_hold(state, host, settings)
        go_back(state, host, settings, "the gateway service did not take it up")
        return False
    if verification is not None:
        request = {**verification, "model": served or verification["model"]}
        checked = answer_of(
            state, host, "verify", "verify", request, settings.llm_root, timeout_seconds=600
        )
        if checked is None:
            _give_up_hold(state, host, settings)
            go_back(state, host, settings, "it was not what a client has to see")
            return False
    host.log(f"{STEP}: release {kept} serves again")
    tell(host, result=result)
    return True


def _give_up_hold(state: State, host: Host, settings: Settings) -> None:
    """What was gone back from is what serves: it must not be called rejected."""
    request = {"engine": settings.engine.name, "who": "a rollback that failed", "give_up": True}
    answer_of(state, host, STEP_BACK, "hold end", request, settings.llm_root)
