"""How a deploy begins and ends on a host: one snapshot, one plan, refusals, the lease."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, TypeVar

from pyinfra import host, logger
from pyinfra.api import deploy

from pyinfra_deploy.deploys.artefacts import artefacts_for, signing_problem
from pyinfra_deploy.deploys.judgement import judge
from pyinfra_deploy.facts.conda_terms import read_conda_terms
from pyinfra_deploy.facts.snapshot import read_snapshot
from pyinfra_deploy.operations import host_steps, packing
from pyinfra_deploy.operations.order import keep_inventory_order
from pyinfra_deploy.operations.packages import install_packages
from pyinfra_deploy.operations.program import report_refusal, sudo_refused
from pyinfra_deploy.operations.rollout_run import this_rollout
from pyinfra_deploy.operations.run import is_dead_run_of_this_machine
from pyinfra_deploy.planning import (
    conda_plan,
    door_plan,
    driver_install,
    engine_care,
    engine_door,
    engine_plan,
    gateway_plan,
    host_care,
    host_files,
    host_plan,
    model_care,
    nginx,
    wanted,
)
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.interpreter import with_python
from pyinfra_deploy.planning.placement import drop_in_path
from pyinfra_deploy.planning.rejected import without_gates
from pyinfra_deploy.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyinfra.api import Host

    from pyinfra_deploy.planning.artefacts import Artefacts
    from pyinfra_deploy.planning.foresight import Foresight
    from pyinfra_deploy.planning.host_plan import HostPlan
    from pyinfra_deploy.settings.schema import Settings

_T = TypeVar("_T")


def plan_this_host() -> HostPlan | None:
    """Read the host once and decide everything. None when the host is refused, which has then
    been printed, with nothing changed on it."""
    keep_inventory_order(host.state)
    settings: Settings = host.data.settings
    groups = frozenset(host.groups)
    artefacts = artefacts_for(host.data.fleet, settings)
    snapshot = unless_sudo_asks(host, lambda: read_host(host, settings, groups, artefacts))
    if not snapshot:
        return None  # the host could not be read; pyinfra has said so and dropped it
    settings = with_python(settings, artefacts.runtime_lock, artefacts.conda_lock, snapshot)
    plan = _planned(settings, groups, snapshot, artefacts)
    if plan is None:
        return None
    refusals = refusals_of(plan, host.data.fleet)
    findings = plan.findings
    if not refusals and "gpu" in groups:
        foresight = judge(host, settings, snapshot, host.data.fleet, plan.release_id)
        if foresight is None:
            return None
        refusals, findings = foresight.refused, (*findings, *foresight.findings)
        if not refusals:
            plan = _planned(settings, groups, snapshot, artefacts, foresight)
            if plan is None:
                return None
    if refusals:
        host_steps.refuse(host, refusals)
        return None
    for finding in findings:
        if finding.severity != "warn":
            continue
        host.log_styled(str(finding), fg="yellow", log_func=logger.warning)
    for reason in plan.reasons():
        host.log(f"will {reason}")
    return plan


def refusals_of(plan: HostPlan, fleet: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Why this run must not touch the host, as far as its plan tells. One that is no rollout's has
    no gates for a release that went back before."""
    found = plan.refused or tuple(unusable_secrets(plan, fleet))
    return found if found or this_rollout() is not None else without_gates(plan.findings)


def unless_sudo_asks(host: Host, read: Callable[[], dict[str, _T]]) -> dict[str, _T]:
    """What `read` reads; nothing, with the host dropped, where sudo's password would have to be
    typed and nobody is there to do it."""
    try:
        return read()
    except EOFError:
        # pyinfra asks for sudo's password at the terminal, where there is one.
        report_refusal(host, "connection", sudo_refused())
        host_steps.drop(host)
        return {}


def read_host(
    host: Host, settings: Settings, groups: frozenset[str], artefacts: Artefacts
) -> dict[str, Any]:
    """The host's snapshot, with what of conda is there where the settings name one."""
    snapshot = with_dead_run(read_snapshot(host, snapshot_request(settings, groups, artefacts)))
    request = conda_plan.facts_request(settings, wanted.BUILD_USER) if "gpu" in groups else None
    if not snapshot or request is None:
        return snapshot
    return {**snapshot, conda_plan.SECTION: read_conda_terms(host, request)}


def with_dead_run(snapshot: dict[str, Any]) -> dict[str, Any]:
    """With state.lease_of_dead_run: only this machine can tell that a run of it is dead."""
    state = snapshot.get("state")
    if not isinstance(state, dict) or not is_dead_run_of_this_machine(state.get("lease")):
        return snapshot
    return {**snapshot, "state": {**state, "lease_of_dead_run": True}}


def _planned(
    settings: Settings,
    groups: frozenset[str],
    snapshot: Mapping[str, Any],
    artefacts: Artefacts,
    foresight: Foresight | None = None,
) -> HostPlan | None:
    """The plan; None, with the host dropped, when making it fails."""
    seen = (foresight.placement, foresight.hardware, foresight.driver) if foresight else ()
    try:
        return host_plan.plan_host(host.name, groups, settings, snapshot, artefacts, *seen)
    except Exception:
        # pyinfra stops the run of all hosts for an exception here; a defect that one host's state
        # brings to light must cost that host alone.
        host.log_styled("this host could not be planned, a defect of the deploy; report this:",
                        fg="red", log_func=logger.error)  # fmt: skip
        for line in traceback.format_exc().splitlines():
            host.log(line, log_func=logger.error)
        host_steps.drop(host)
        return None


def unusable_secrets(plan: HostPlan, fleet: Mapping[str, Any]) -> Iterator[Finding]:
    """Secrets that a later step of this run needs and that cannot be had: said now, not after the
    model has been pulled."""
    if plan.certificate or plan.host_certificate:
        problem = signing_problem(fleet["name"], fleet["root"])
        if problem is not None:
            yield Finding(
                "gateway.ca-key",
                "refuse",
                plan.host,
                "the inventory's CA",
                f"{problem.what}: {problem.why}",
                problem.fix,
            )
    token = plan.settings.model.token if plan.settings.model else None
    if plan.pull is not None and token is not None:
        try:
            token.reveal()
        except SettingsError as error:
            yield Finding(
                "model.token",
                "refuse",
                plan.host,
                "model.token",
                f"the hub's token cannot be had: {error}",
                "set it, or remove model.token where the hub needs none",
            )


def snapshot_request(
    settings: Settings, groups: frozenset[str], artefacts: Artefacts
) -> dict[str, Any]:
    """What the snapshot has to look at on this host."""
    groups = door_plan.with_door(groups, artefacts)
    files = [file.path for file in host_files.managed_files(groups, settings, artefacts)]
    units: list[str] = []
    other = None
    if "gpu" in groups:
        engine = settings.engine.name
        units += [
            engine_plan.ENGINE_UNIT.format(name=engine),
            engine_plan.GO_LIVE_UNIT.format(name=engine),
        ]
        units += [*host_care.UNITS, *engine_care.units_to_read(engine), model_care.TIMER]
        files += engine_care.files_to_read(engine)
        files += [model_care.TIMER_PATH, model_care.CONFIGURATION]
        files += [drop_in_path(engine), driver_install.UNIT_PATH, *host_care.files_to_read()]
    if "gateway" in groups:
        units += [*gateway_plan.gateway_units(settings), gateway_plan.ACME_TIMER]
        assert settings.gateway is not None
        other = gateway_plan.other_certificate(settings.gateway)
    if {"gateway", wanted.DOOR} & groups:
        units += ["nginx.service"]
        files += [nginx.CONFIGURATION, engine_door.CONFIGURATION, nginx.STOCK_SITE]
    return {
        "llm_root": settings.llm_root,
        "other_certificate": other,
        "packages": wanted.packages(groups, settings, {"os": {}}),
        "files": sorted({*files, *wanted.directories(settings.llm_root)}),
        "units": units,
        "engines": [settings.engine.name] if "gpu" in groups else [],
        "driver": list(driver_install.packages_to_ask_for(settings)) if "gpu" in groups else [],
        "users": list(wanted.service_users(groups)),
    }


@deploy("Take the host")
def take_host(plan: HostPlan) -> None:
    """Everything before the first real change: Python for the host program where it is missing,
    then the lease, and with it the program. Where nothing has to change, only a word of that."""
    if not plan.changes:
        host_steps.nothing_to_change(name="Nothing to change", summary="as the settings want it")
        return
    if "python3" in plan.packages:
        install_packages(name="Install Python for the host program", packages=["python3"])
    host_steps.take_lease(
        name="Take the host for this run",
        plan=plan,
        program=packing.host_program() if plan.program else None,
    )


@deploy("Give the host back")
def finish(plan: HostPlan) -> None:
    """The end of a run that changed something."""
    runtime = plan.settings.runtime
    if plan.changes and plan.driver is None and plan.on("gpu") and runtime is not None:
        host_steps.prune(
            name="Remove what is no longer needed",
            llm_root=plan.settings.llm_root,
            keep_releases=plan.settings.engine.keep_releases,
            keep_runtimes=runtime.keep,
        )
    if plan.changes:
        host_steps.give_lease_back(name="Give the host back")
    if plan.driver is not None:
        host_steps.not_finished(
            name="Not finished: the driver came first",
            why="its driver works. Run the same command again: what else the host needs is planned "
            "from the GPUs that can be read now.",
        )
