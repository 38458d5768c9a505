"""A go-live: what its job is told, and how a run, or a rollout's step, ends with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra import logger

from pyinfra_deploy.operations.calling import lease_renewal
from pyinfra_deploy.operations.gateway_steps import configured_as_before, was_reconfigured
from pyinfra_deploy.operations.jobs import job_result, lost_text
from pyinfra_deploy.operations.program import ConnectionLost, HostRefused, report_refusal
from pyinfra_deploy.operations.rollout_run import this_rollout
from pyinfra_deploy.operations.run import this_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra.api import Host, State

    from pyinfra_deploy.settings.schema import Settings

STEP = "go-live"
# Of this run, by host: what a check that comes after it may have to undo.
_went_live: dict[str, dict[str, Any]] = {}
# Hosts whose last go-live of this run goes on, as far as is known: the connection was lost.
_lost: set[str] = set()
# Importing torch and vLLM takes half a minute of two cores, minutes from a slow or busy disk; a
# driver that hangs never answers.
PROOF_SECONDS = 900
# Values of vLLM's tokenizer-mode that load with transformers' AutoTokenizer.
TRANSFORMERS_TOKENIZERS = ("auto", "hf", "slow")


def go_live_spec(
    settings: Settings, release: str, served_model_name: str, gpus: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The go-live job's input (files/fleet_host/golive.py), for a release that is staged.

    served_model_name: "" for the release's own. gpus: the planned GPUs' UUIDs, which its proof has
    to see; empty: it takes those that it sees.
    """
    engine, rollout = settings.engine, this_rollout()
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
        "run": rollout.id if rollout is not None else this_run().run,
        "gates": gates_spec(settings) if rollout is not None else None,
    }


def gates_spec(settings: Settings) -> dict[str, Any]:
    """What a rollout asks of a release before it has clients (files/fleet_host/gates.py)."""
    asked = settings.rollout
    return {
        "golden": [
            {
                "prompt": one.prompt,
                "must_contain": list(one.must_contain),
                "max_tokens": one.max_tokens,
                "chat": one.chat,
            }
            for one in asked.golden_prompts
        ],
        "answer_seconds": asked.answer_seconds,
        "soak_seconds": asked.soak_seconds,
        "error_budget": asked.error_budget_percent / 100,
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


def run_go_live(
    state: State, host: Host, settings: Settings, spec: Mapping[str, Any], step: str = STEP
) -> dict[str, Any] | None:
    """The job's result; None when it failed, which has then been reported, and told to the rollout
    that this run is a step of."""
    name, root = settings.engine.name, settings.llm_root
    _lost.discard(host.name)
    try:
        result = job_result(
            state, host, kind="golive", job_id=name, spec=spec, llm_root=root, step=step,
            renew=lease_renewal(state, host, root),
        )  # fmt: skip
    except HostRefused as refusal:
        report_refusal(host, step, refusal)
        tell(host, error={"step": step, **said_of(refusal)}, release=spec["release"])
        return None
    except ConnectionLost as error:
        _lost.add(host.name)
        text = lost_text("golive", name, step, error)
        host.log_styled(text, fg="red", log_func=logger.error)
        tell(host, error={"step": step, "what": text}, release=spec["release"])
        return None
    _went_live[host.name] = result
    for text in result.get("warnings", []):
        host.log_styled(f"{step}: {text}", fg="yellow", log_func=logger.warning)
    return result


def was_lost(host: Host) -> bool:
    """Whether the host's last go-live was not seen to its end."""
    return host.name in _lost


def said_of(refusal: HostRefused) -> dict[str, Any]:
    return {
        "what": refusal.what, "why": refusal.why, "fix": refusal.fix, "detail": refusal.detail,
    }  # fmt: skip


def tell(host: Host, **document: Any) -> None:
    """What became of a host, for the rollout; nothing in a run of its own."""
    rollout = this_rollout()
    if rollout is not None:
        rollout.tell(host.data.fleet["host"], document)


def went_live(host: Host) -> bool:
    """Whether this run has brought a release live there."""
    return host.name in _went_live


def gateway_back(state: State, host: Host, settings: Settings, why: str) -> None:
    """Give the gateway service back what it ran before this run, where no release went live: a
    check that fails counts like a gate. Only as a step of a rollout, which is told."""
    if this_rollout() is None:
        return
    error = {"step": "verify", "what": f"the gateway is up to date, and then: {why}"}
    done = was_reconfigured(host) and configured_as_before(state, host, settings)
    if done:
        error["what"] = f"what was new for the gateway service was taken back: {why}"
        host.log_styled(
            "gateway service: back to what it ran before", fg="red", log_func=logger.error
        )
    else:
        error["why"] = "Nothing of this run could be taken back: what the check found is so now."
    tell(host, error=error, gateway="back" if done else "runs")


def go_back(state: State, host: Host, settings: Settings, why: str) -> None:
    """Undo this run's go-live, by another one to the release before it, with the configuration that
    the gateway service had for that: what a check after a go-live finds counts like a gate within
    it. Only as a step of a rollout. Reported, and told to the rollout."""
    result = _went_live.pop(host.name, None)
    if result is None or this_rollout() is None:
        return
    failed, before = str(result.get("release")), result.get("from")
    error = {"step": "verify", "what": f"release {failed} went live, and then: {why}"}
    if not before or before == failed:
        host.log_styled(
            f"{STEP}: there is no other release to go back to: {failed} stays live",
            fg="red", log_func=logger.error,
        )  # fmt: skip
        tell(host, error=error, release=failed)
        return
    host.log_styled(f"{STEP}: back to release {before}", fg="red", log_func=logger.error)
    spec = go_live_spec(settings, str(before), "")
    # It has served until a moment ago.
    spec |= {"gates": None, "proof": None, "fitness": None, "ask_parser": False}
    spec["rejects"] = {"release": failed, "why": f"it went live, and then: {why}"}
    done = run_go_live(state, host, settings, spec, step="going back") is not None
    if done and not configured_as_before(state, host, settings):
        # Its clients may ask for a name that only the failed release had.
        error["why"] = f"{before} serves again, and the gateway service is not as it was for it."
        done = False
    tell(host, error=error, release=failed, back_to=str(before) if done else None)
