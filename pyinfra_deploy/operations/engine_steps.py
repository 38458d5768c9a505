"""Operations of the engine: pull the model, stage a release, switch to it behind the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra import logger
from pyinfra.api import operation

from pyinfra_deploy.operations import fan_out, gate
from pyinfra_deploy.operations.argument_steps import arguments_reviewed
from pyinfra_deploy.operations.calling import answer_of, lease_renewal, on_host
from pyinfra_deploy.operations.gateway_steps import activated
from pyinfra_deploy.operations.go_live import go_back, go_live_spec, run_go_live, tell
from pyinfra_deploy.operations.jobs import run_job
from pyinfra_deploy.operations.rollout_run import this_rollout
from pyinfra_deploy.operations.service_checks import verified

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra.api import Host, State

    from pyinfra_deploy.operations.calling import Commands
    from pyinfra_deploy.planning.hold import Hold
    from pyinfra_deploy.planning.host_plan import HostPlan

# Filled while a run executes, read by a later step of the same host: a model's digest is known only
# once it has been pulled.
_pulled: dict[str, str] = {}


@operation()
def pull_model(plan: HostPlan, job_id: str) -> Commands:
    """Have the host pull, verify and publish a model, as a job of its own.

    + plan: the host's plan, which names the model
    + job_id: the job's name on the host

    **Example:**

    .. code:: python

        pull_model(name="Pull Qwen/Qwen3-32B", plan=plan, job_id="Qwen--Qwen3-32B-master")
    """
    assert plan.pull is not None
    spec, llm_root = plan.pull, plan.settings.llm_root

    def pull(state: State, host: Host) -> bool:
        fan_out.open_hosts(state, host, plan, lease_renewal(state, host, llm_root))
        result = run_job(
            state,
            host,
            kind="pull",
            job_id=job_id,
            spec=spec,
            llm_root=llm_root,
            step="model",
            renew=lease_renewal(state, host, llm_root),
        )
        if result is None:
            return False
        fan_out.told(host, result)
        _pulled[host.name] = str(result["model_digest"])
        return True

    yield on_host(pull)


@operation()
def go_live(plan: HostPlan, verification: Mapping[str, Any] | None) -> Commands:
    """Stage the release and switch the host to it, behind the gate: after one host has failed, no
    other host of this run is switched.

    + plan: the host's plan
    + verification: input of `verify`, to be run before the next host is switched; None: later

    **Example:**

    .. code:: python

        go_live(name="Go live", plan=plan, verification=None)
    """

    def switch(state: State, host: Host) -> bool:
        closed_by = gate.closed_by(state)
        if closed_by is not None:
            text = f"left alone: the go-live on {closed_by} failed"
            if plan.serving:
                text += "; this host still serves its present release"
            host.log_styled(text, fg="red", log_func=logger.error)
            return False
        result = _stage_and_switch(state, host, plan)
        ok = result is not None
        if ok and plan.gateway_at_go_live:
            ok = activated(state, host, plan)
            if not ok:
                go_back(state, host, plan.settings, "the gateway service did not take it up")
        if ok and verification is not None:
            ok = verified(state, host, plan, verification)
            if not ok:
                go_back(state, host, plan.settings, "it was not what a client has to see")
        # A rollout's hosts of one group go at once; what comes after them is its own to say.
        if not ok and this_rollout() is None:
            gate.close(state, host)
        if ok:
            tell(host, result=result)
        return ok

    yield on_host(switch)


def _stage_and_switch(state: State, host: Host, plan: HostPlan) -> dict[str, Any] | None:
    """The go-live's result; None after a failure, which has been reported."""
    assert plan.release is not None
    release, settings = plan.release, plan.settings
    assert settings.runtime is not None
    root, engine = settings.llm_root, settings.engine
    if plan.held is not None:
        return _start_what_is_held(state, host, plan, plan.held)
    # What this run has pulled is newer than what the plan saw.
    digest = _pulled.get(host.name) or str(plan.model_digest)
    identity = release.id_with(digest)
    if not arguments_reviewed(state, host, plan, identity):
        return None
    staged = answer_of(
        state,
        host,
        "release",
        "release stage",
        {
            "engine": engine.name,
            "id": identity,
            "release": {
                "runtime": release.runtime.path,
                "runtime_digest": release.runtime.digest,
                "model": release.model_path,
                "model_digest": digest,
                "served_model_name": settings.served_model_name,
                "vllm": settings.runtime.vllm,
            },
            "config_yaml": release.configuration,
            "env": release.environment,
        },
        root,
    )
    if staged is None:
        return None
    bound = answer_of(
        state,
        host,
        "release",
        "release bind",
        {
            "engine": engine.name,
            "id": identity,
            "binding": plan.binding,
            "placement": plan.unit_binding,
        },
        root,
    )
    if bound is None:
        return None
    spec = go_live_spec(settings, identity, settings.served_model_name, plan.gpus)
    return run_go_live(state, host, settings, spec)


def _start_what_is_held(
    state: State, host: Host, plan: HostPlan, hold: Hold
) -> dict[str, Any] | None:
    """The release that a rollback went back to: it was staged and proven when it came."""
    spec = go_live_spec(plan.settings, hold.kept, hold.served_model_name, plan.gpus)
    # These are about the arguments and the model that the settings name.
    return run_go_live(state, host, plan.settings, spec | {"ask_parser": False, "fitness": None})
