"""Installing the NVIDIA driver: the job on the host, the reboot where one is owed, the proof."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import gevent
from pyinfra import logger
from pyinfra.api import operation

from pyinfra_deploy.operations import gate
from pyinfra_deploy.operations.calling import answer_of, lease_renewal, on_host
from pyinfra_deploy.operations.go_live import go_live_spec
from pyinfra_deploy.operations.jobs import run_job
from pyinfra_deploy.operations.program import ConnectionLost, HostRefused, call_through_outages

if TYPE_CHECKING:
    from pyinfra.api import Host, State

    from pyinfra_deploy.operations.calling import Commands
    from pyinfra_deploy.planning.host_plan import HostPlan

STEP = "driver"
# Servers with eight cards and a terabyte of memory test both at boot for many minutes.
REBOOT_SECONDS = 2400.0
POLL_SECONDS = 5.0
# The first nvidia-smi after the boot initialises every card.
VERIFY_SECONDS = 300


@operation()
def install_driver(plan: HostPlan) -> Commands:
    """Drain and stop the engine, install and hold the driver, reboot where another module is
    loaded, and see nvidia-smi and the engine answer. Behind the gate of go-lives.

    + plan: the host's plan, with its driver

    **Example:**

    .. code:: python

        install_driver(name="Install the NVIDIA driver", plan=plan)
    """

    def install(state: State, host: Host) -> bool:
        closed_by = gate.closed_by(state)
        if closed_by is not None:
            host.log_styled(
                f"{STEP}: left alone, with the driver that it has: {closed_by} failed before it",
                fg="red",
                log_func=logger.error,
            )
            return False
        done = _install(state, host, plan)
        if not done:
            gate.close(state, host)
        return done

    yield on_host(install)


def _install(state: State, host: Host, plan: HostPlan) -> bool:
    assert plan.driver is not None
    settings, live = plan.settings, plan.driver.live
    root, engine = settings.llm_root, settings.engine.name
    renew = lease_renewal(state, host, root)
    again = go_live_spec(settings, *live) if live is not None else None
    spec = {
        "llm_root": root,
        "packages": list(plan.driver.packages),
        "unit": f"llm-engine@{engine}.service",
        "go_live": again,
    }
    installed = run_job(
        state, host, kind="driver", job_id=engine, spec=spec, llm_root=root, step=STEP, renew=renew
    )
    if installed is None:
        return False
    if installed["reboot"] and not _reboot(state, host, root, installed):
        return False
    renew()
    module = {"module": installed["module"]}
    answer = answer_of(state, host, STEP, "driver verify", module, root, VERIFY_SECONDS)
    if answer is None:
        return False
    host.log(f"{STEP}: {answer['driver']} runs {answer['gpus']} GPUs", log_func=logger.info)
    if again is None:
        return True
    served = run_job(
        state, host, kind="golive", job_id=engine, spec=again, llm_root=root, step=STEP, renew=renew
    )
    return served is not None


def _reboot(state: State, host: Host, root: str, installed: dict[str, Any]) -> bool:
    """Reboot the host and wait until it is back. False, which has been said, when it is not."""
    before = {"boot_id": installed["boot_id"], "module": installed["module"]}
    host.log(
        f"{STEP}: {installed['module']} is installed, {installed['loaded'] or 'none'} is loaded: "
        "rebooting",
        log_func=logger.info,
    )
    try:
        call_through_outages(
            state, host, "driver reboot", before, llm_root=root, patience_seconds=REBOOT_SECONDS
        )
    except (ConnectionLost, HostRefused) as error:
        return _not_back(host, f"it could not be asked to reboot ({error})")
    deadline, said = time.monotonic() + REBOOT_SECONDS, ""
    while (left := deadline - time.monotonic()) > 0:
        try:
            now = call_through_outages(
                state, host, "driver boot", {}, llm_root=root, patience_seconds=left
            )
        except ConnectionLost as error:
            return _not_back(host, f"it did not come back ({error}): look at its console")
        except HostRefused as error:
            said = f" ({error})"  # half down, or half up and without its disks
        else:
            if now["boot_id"] != before["boot_id"]:
                return True
        gevent.sleep(POLL_SECONDS)
    why = "it was asked to reboot and did not: systemctl list-jobs on the host shows what holds it"
    return _not_back(host, why + said)


def _not_back(host: Host, why: str) -> bool:
    host.log_styled(
        f"{STEP}: {why}. Then run the same command again: it goes on from here.",
        fg="red",
        log_func=logger.error,
    )
    return False
