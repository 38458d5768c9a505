"""Operations on the ground of a host. Each is called only where something has to change; what
exactly is decided again on the host, when the step runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra import host as current_host
from pyinfra import logger
from pyinfra.api import operation

from pyinfra_deploy.operations import lease, wheelhouse
from pyinfra_deploy.operations.calling import answer_of, lease_renewal, on_host
from pyinfra_deploy.operations.jobs import run_job
from pyinfra_deploy.operations.program import ConnectionLost, HostRefused, call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra.api import Host, State

    from pyinfra_deploy.operations.calling import Commands
    from pyinfra_deploy.planning.finding import Finding
    from pyinfra_deploy.planning.host_plan import HostPlan
    from pyinfra_deploy.planning.wanted import Environment
    from pyinfra_deploy.settings import Secret

# A runtime of 10 GB has some 60,000 files.
PRUNE_SECONDS = 600


@operation()
def nothing_to_change(summary: str) -> Commands:
    """Say that a host is as the settings want it.

    + summary: what was compared

    **Example:**

    .. code:: python

        nothing_to_change(name="gpu1 is as it should be", summary="release 1f2e runs")
    """
    current_host.noop(summary)
    yield from ()


@operation()
def take_lease(plan: HostPlan, program: bytes | None = None) -> Commands:
    """Take the host for this run, if it is still as the plan saw it.

    + plan: the host's plan
    + program: the host program, where the host's is missing or another: it is in place, durably,
      once the lease is held, and where it is not nothing has changed

    **Example:**

    .. code:: python

        take_lease(name="Take the host", plan=plan, program=host_program())
    """
    yield on_host(
        lambda state, host: lease.acquire(
            state,
            host,
            llm_root=plan.settings.llm_root,
            generation_seen=plan.generation,
            lease_seen=plan.lease,
            installing=program,
        )
    )


@operation()
def give_lease_back() -> Commands:
    """Let the next run have the host.

    **Example:**

    .. code:: python

        give_lease_back(name="Give the host back")
    """

    def give_back(state: State, host: Host) -> bool:
        lease.release(state, host)
        return True

    yield on_host(give_back)


@operation()
def prune(llm_root: str, keep_releases: int, keep_runtimes: int) -> Commands:
    """Remove old releases and runtimes. What cannot be removed is said, and fails nothing.

    + llm_root: where the host program is
    + keep_releases: releases of each engine that stay
    + keep_runtimes: runtimes that stay

    **Example:**

    .. code:: python

        prune(name="Remove what is no longer needed", llm_root="/srv/llm", keep_releases=3,
              keep_runtimes=3)
    """
    spec = {"keep_releases": keep_releases, "keep_runtimes": keep_runtimes}

    def remove(state: State, host: Host) -> bool:
        try:
            answer = call(
                state, host, "prune", spec, llm_root=llm_root, timeout_seconds=PRUNE_SECONDS
            )
        except (HostRefused, ConnectionLost) as error:
            host.log_styled(f"prune: {error}", fg="yellow", log_func=logger.warning)
            return True
        if answer.get("changed"):
            gone = [*answer["releases"], *answer["runtimes"]]
            size = answer["freed_bytes"] / 1e9
            host.log(f"removed {', '.join(gone)}: {size:.1f} GB free again", log_func=logger.info)
        return True

    yield on_host(remove)


@operation()
def not_finished(why: str) -> Commands:
    """End a host's run as failed although each step of it was done: what is asked for is not there
    yet, and an exit code of 0 would say that it is.

    + why: what was done and what is to be done next

    **Example:**

    .. code:: python

        not_finished(name="Not finished", why="the driver works; run again for the rest")
    """

    def end(state: State, host: Host) -> bool:
        del state
        host.log_styled(why, fg="yellow", log_func=logger.warning)
        return False

    yield on_host(end)


@operation()
def call_program(
    step: str, command: str, spec: Mapping[str, Any], llm_root: str, timeout_seconds: int = 300
) -> Commands:
    """Run one command of the host program; its refusal fails this host alone.

    + step: what to call it in an error
    + command: the host program's command
    + spec: its JSON input, which is in no argv and no log
    + llm_root: where the program is
    + timeout_seconds: how long it may take

    **Example:**

    .. code:: python

        call_program(
            name="Raise vm.max_map_count", step="kernel", command="kernel raise-map-count",
            spec={"minimum": 1048576}, llm_root="/srv/llm",
        )
    """
    yield on_host(
        lambda state, host: (
            answer_of(state, host, step, command, spec, llm_root, timeout_seconds) is not None
        )
    )


@operation()
def put_secret(secret_name: str, secret: Secret, llm_root: str) -> Commands:
    """Write a secret for a unit's LoadCredential=. It is fetched only when this runs, and goes
    through stdin.

    + secret_name: the credential's name
    + secret: where the secret comes from
    + llm_root: where the host program is

    **Example:**

    .. code:: python

        put_secret(name="Give the host the hub's token", secret_name="hub-token", secret=token,
                   llm_root="/srv/llm")
    """

    def put(state: State, host: Host) -> bool:
        spec = {"name": secret_name, "secret": secret.reveal()}
        return answer_of(state, host, "secret", "credential write", spec, llm_root) is not None

    yield on_host(put)


@operation()
def build_environment(environment: Environment, llm_root: str) -> Commands:
    """Have the host build a Python environment from a lock, as a job of its own.

    + environment: what to build
    + llm_root: where the host program is

    **Example:**

    .. code:: python

        build_environment(name="Install vLLM 0.33.0", environment=runtime, llm_root="/srv/llm")
    """

    if environment.serve_port:
        wheelhouse.announce(current_host.state, environment)

    def build(state: State, host: Host) -> bool:
        spec = dict(environment.job)
        if environment.serve_port:
            renew = lease_renewal(state, host, llm_root)
            place = wheelhouse.place_for(state, host, environment, llm_root, renew)
            if place is None:
                return False
            spec["wheelhouse"] = place
        result = run_job(
            state,
            host,
            kind="environment",
            job_id=environment.name,
            spec=spec,
            llm_root=llm_root,
            step=environment.label,
            renew=lease_renewal(state, host, llm_root),
        )
        return result is not None

    yield on_host(build)


def refuse(host: Host, findings: tuple[Finding, ...]) -> None:
    """Print why a host is refused and take it out of the run, before anything has changed."""
    for finding in findings:
        for line in str(finding).splitlines():
            host.log_styled(line, fg="red", log_func=logger.error)
    drop(host)


def drop(host: Host) -> None:
    """Take a host out of the run, as failed.

    By its own object: in a deploy, pyinfra's `host` stands for whichever host is being prepared,
    and for none once that is over, when the results are printed.
    """
    host.state.fail_hosts({host.state.inventory.get_host(host.name)})
