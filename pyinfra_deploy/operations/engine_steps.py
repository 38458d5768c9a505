"""Operations of the engine: pull the model, stage a release, switch to it behind the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra import logger
from pyinfra.api import operation

from pyinfra_deploy.operations import fan_out, gate
from pyinfra_deploy.operations.argument_steps import arguments_reviewed
from pyinfra_deploy.operations.calling import answer_of, lease_renewal, on_host
from pyinfra_deploy.operations.gateway_steps import activated
from pyinfra_deploy.operations.jobs import run_job
from pyinfra_deploy.operations.run import this_run
from pyinfra_deploy.operations.service_checks import verified

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra.api import Host, State

    from pyinfra_deploy.operations.calling import Commands
    from pyinfra_deploy.planning.host_plan import HostPlan
    from pyinfra_deploy.settings.schema import Settings

# Importing torch and vLLM takes half a minute of two cores, minutes from a slow or busy disk; a
# driver that hangs never answers.
PROOF_SECONDS = 900
# Values of vLLM's tokenizer-mode that load with transformers' AutoTokenizer.
TRANSFORMERS_TOKENIZERS = ("auto", "hf", "slow")

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
        ok = _stage_and_switch(state, host, plan)
        if ok and plan.gateway_at_go_live:
            ok = activated(state, host, plan)
        if ok and verification is not None:
            ok = verified(state, host, plan, verification)
        if not ok:
            gate.close(state, host)
        return ok

    yield on_host(switch)


def go_live_spec(
    settings: Settings, release: str, served_model_name: str, gpus: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The go-live job's input (files/fleet_host/golive.py), for a release that is staged. gpus: the
    planned GPUs' UUIDs, which its proof has to see; empty: it takes those that it sees."""
    engine = settings.engine
    return {
        "llm_root": settings.llm_root,
        "engine": engine.name,
        "release": release,
        "unit": f"llm-engine@{engine.name}.service",
        "probe": {
            "path": "/v1/completions",
            "model": served_model_name,
            "prompt": "1, 2, 3,",
            "max_tokens": 4,
        },
        "start_timeout_seconds": engine.start_timeout_seconds,
        "stall_timeout_seconds": engine.stall_timeout_seconds,
        "drain_seconds": engine.drain_seconds,
        "proof": proof_spec(settings, gpus),
        "fitness": fitness_spec(settings),
        "enable": True,
        "ask_parser": True,
        "run": this_run().run,
    }


def proof_spec(settings: Settings, gpus: tuple[str, ...]) -> dict[str, Any] | None:
    """What go-live proves of a release that is new on the host (files/fleet_host/proof.py)."""
    if settings.engine.proof == "off":
        return None
    return {
        "device": settings.runtime.device if settings.runtime else "cuda",
        "gpus": list(gpus),
        "trust_remote_code": settings.engine.args.get("trust-remote-code") is True,
        "timeout_seconds": PROOF_SECONDS,
    }


def fitness_spec(settings: Settings) -> dict[str, Any] | None:
    """How go-live examines a model's tokenizer (files/fleet_host/fitness.py); None: not at all,
    also where vLLM uses none, or one that transformers does not load."""
    assert settings.model is not None
    args = settings.engine.args
    another = any(
        (
            args.get("skip-tokenizer-init") is True,
            args.get("tokenizer") is not None,
            args.get("tokenizer-mode", "auto") not in TRANSFORMERS_TOKENIZERS,
        )
    )
    if settings.model.fitness == "off" or another:
        return None
    template = args.get("chat-template")
    return {
        "trust_remote_code": args.get("trust-remote-code") is True,
        "chat_template": str(template) if template else None,
        "tools": args.get("enable-auto-tool-choice") is True,
        "timeout_seconds": PROOF_SECONDS,
    }


def _stage_and_switch(state: State, host: Host, plan: HostPlan) -> bool:
    assert plan.release is not None
    release, settings = plan.release, plan.settings
    assert settings.runtime is not None
    root, engine = settings.llm_root, settings.engine
    # What this run has pulled is newer than what the plan saw.
    digest = _pulled.get(host.name) or str(plan.model_digest)
    identity = release.id_with(digest)
    if not arguments_reviewed(state, host, plan, identity):
        return False
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
        return False
    bound = answer_of(
        state,
        host,
        "release",
        "release bind",
        {"engine": engine.name, "binding": plan.binding},
        root,
    )
    if bound is None:
        return False
    spec = go_live_spec(settings, identity, settings.served_model_name, plan.gpus)
    result = run_job(
        state,
        host,
        kind="golive",
        job_id=engine.name,
        spec=spec,
        llm_root=root,
        step="go-live",
        renew=lease_renewal(state, host, root),
    )
    if result is None:
        return False
    for text in result.get("warnings", []):
        host.log_styled(f"go-live: {text}", fg="yellow", log_func=logger.warning)
    return True
