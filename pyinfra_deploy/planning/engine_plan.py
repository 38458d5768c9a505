"""What has to change for a host's engine: runtime, model, release, whether to go live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning import wanted
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.hold import applies
from pyinfra_deploy.planning.placement import drop_in, environment_of, names_masked_gpus
from pyinfra_deploy.planning.release import (
    digest_of_text,
    engine_configuration,
    environment_file,
    release_id,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.planning.artefacts import Artefacts
    from pyinfra_deploy.planning.hold import Hold
    from pyinfra_deploy.planning.model_lock import ModelLock
    from pyinfra_deploy.planning.placement import Placement
    from pyinfra_deploy.planning.wanted import Environment
    from pyinfra_deploy.settings.schema import Settings

ENGINE_UNIT = "llm-engine@{name}.service"
GO_LIVE_UNIT = "llm-golive@{name}.service"
# How the names end under which the host program writes vm.max_map_count (kernel.py, OUR_NAMES).
OUR_SYSCTL_FILE = "llm-map-count.conf"


@dataclass(frozen=True)
class Release:
    """The release that the settings ask for; its ID is known once the model's digest is."""

    engine: str
    configuration: str
    environment: str
    runtime: Environment
    model_path: str

    def id_with(self, model_digest: str) -> str:
        return release_id(
            runtime_digest=self.runtime.digest,
            model_digest=model_digest,
            configuration=self.configuration,
            environment=self.environment,
        )


def plan_engine(
    settings: Settings,
    snapshot: Mapping[str, Any],
    artefacts: Artefacts,
    environments: Mapping[str, Any],
    uv: Environment,
    placement: Placement | None = None,
) -> dict[str, Any]:
    """placement: where the host's GPUs were read; an engine on the CPU has none."""
    assert settings.runtime is not None
    assert settings.model is not None
    runtime = wanted.runtime_environment(
        settings, artefacts.runtime_lock, f"{uv.path}/bin/uv", artefacts.conda_lock
    )
    lock = artefacts.model.lock
    record = _model_record(settings, snapshot, lock)
    client = wanted.modelscope_environment(
        settings, artefacts.modelscope_lock, wanted.tools_python(snapshot), f"{uv.path}/bin/uv"
    )
    release = Release(
        engine=settings.engine.name,
        configuration=engine_configuration(
            vllm_version=settings.runtime.vllm,
            model_path=wanted.model_directory(settings, lock),
            served_model_name=settings.served_model_name,
            arguments=settings.engine.args,
            drain_seconds=settings.engine.drain_seconds,
        ),
        environment=environment_file(settings.engine.env),
        runtime=runtime,
        model_path=wanted.model_directory(settings, lock),
    )
    engine = (snapshot.get("engines") or {}).get(settings.engine.name) or {}
    unit = (snapshot.get("units") or {}).get(ENGINE_UNIT.format(name=settings.engine.name)) or {}
    serving = unit.get("active") == "active" and bool(engine.get("current"))
    binding = environment_file(environment_of(placement, settings.runtime.vllm))
    bound = drop_in(settings.engine.name, placement)
    live = (snapshot.get("sysctl") or {}).get("vm.max_map_count") or {}
    digest = _model_digest(lock, record)
    held = applies(engine.get("hold"), release.id_with(digest) if digest else None)
    return {
        "map_count": _map_count(settings, live),
        "runtime": runtime if wanted.missing(runtime, environments) else None,
        "pull": _pull(settings, client.path, artefacts) if record is None else None,
        "model_digest": digest,
        "held": held,
        "release": release,
        "binding": binding,
        "unit_binding": bound.content if bound is not None else "",
        "gpus": tuple(gpu.uuid for gpu in placement.gpus if gpu.uuid) if placement else (),
        "serving": serving,
        "go_live": _go_live_reason(
            release, record, engine, unit, binding, _go_live_runs(settings, snapshot), held
        ),
    }


def _pull(settings: Settings, client: str, artefacts: Artefacts) -> dict[str, Any]:
    lock, fan_out = artefacts.model.lock, artefacts.fan_out
    job = wanted.pull_job(settings, client, lock, fan_out=fan_out)
    return job | {"provenance": wanted.provenance(settings, artefacts.model)}


def _model_digest(lock: ModelLock | None, record: Mapping[str, Any] | None) -> str | None:
    """Of a locked model known before it is pulled."""
    if lock is not None:
        return lock.digest
    return str(record["model_digest"]) if record is not None else None


def go_live_findings(
    host: str, settings: Settings, snapshot: Mapping[str, Any], plan: Mapping[str, Any]
) -> tuple[Finding, ...]:
    """A go-live that runs, to another release than the one that is wanted: the host would refuse
    this one, after everything else was changed. plan: as plan_engine gives it."""
    name = settings.engine.name
    asked = ((snapshot.get("engines") or {}).get(name) or {}).get("golive_asked")
    if not asked or plan["model_digest"] is None or not _go_live_runs(settings, snapshot):
        return ()
    held = plan["held"]
    identity = held.kept if held else plan["release"].id_with(plan["model_digest"])
    if asked == identity:
        return ()
    unit = GO_LIVE_UNIT.format(name=name)
    return (
        Finding(
            "engine.other-go-live",
            "refuse",
            host,
            unit,
            f"a go-live to release {asked} is running, and the settings now ask for {identity}",
            f"wait until it has ended (journalctl -fu {unit} on the host shows it), or stop it "
            f"there, which goes back to the release before: sudo systemctl stop {unit}; then run "
            "the same command again",
        ),
    )


def _go_live_runs(settings: Settings, snapshot: Mapping[str, Any]) -> bool:
    name = GO_LIVE_UNIT.format(name=settings.engine.name)
    unit = (snapshot.get("units") or {}).get(name) or {}
    return unit.get("active") in ("active", "activating", "deactivating", "reloading")


def _model_record(
    settings: Settings, snapshot: Mapping[str, Any], lock: ModelLock | None = None
) -> Mapping[str, Any] | None:
    """The record of the published model, when every file of it is there as recorded, and as
    locked."""
    assert settings.model is not None
    revisions = (snapshot.get("models") or {}).get(wanted.model_slug(settings)) or {}
    found = revisions.get(wanted.model_revision(settings, lock))
    if not isinstance(found, dict) or not found.get("intact"):
        return None
    record = found.get("record")
    if not isinstance(record, dict) or not record.get("model_digest"):
        return None
    return record if lock is None or record["model_digest"] == lock.digest else None


def _map_count(settings: Settings, live: Mapping[str, Any]) -> int | None:
    """The value to raise vm.max_map_count to, or None: it is never lowered.

    Checked both live and as the next boot would set it, whatever file does.
    """
    minimum = settings.gpu_host.max_map_count
    value = live.get("live")
    at_boot = [line for line in live.get("assignments", []) if str(line["value"]).isdigit()]
    boot_value = int(at_boot[-1]["value"]) if at_boot else 0
    others = [line for line in at_boot if not str(line["file"]).endswith(OUR_SYSCTL_FILE)]
    if others and int(others[-1]["value"]) > boot_value:
        return minimum  # an operator's file came later and asks for more: ours has to go
    if isinstance(value, int) and value >= minimum and boot_value >= minimum:
        return None
    return minimum


def _state_of(unit: Mapping[str, Any]) -> str:
    """In words; of a unit that systemd has given up, also how it ended and how often."""
    state = str(unit.get("active") or "absent")
    how = [str(unit["result"])] if unit.get("result") not in (None, "", "success") else []
    if restarts := int(unit.get("restarts") or 0):
        how.append(f"started again {restarts} times in vain")
    return f"{state} ({', '.join(how)})" if state == "failed" and how else state


def _go_live_reason(
    release: Release,
    record: Mapping[str, Any] | None,
    engine: Mapping[str, Any],
    unit: Mapping[str, Any],
    binding: str,
    runs: bool,
    held: Hold | None,
) -> str:
    """Why the engine must be switched or started; empty when it runs what is wanted. runs: a
    go-live is at work on the host, perhaps of a run that was killed. held: what it is to run
    instead of what the settings ask for.

    What runs is compared, not what this run changed: an interrupted run loses no restart.
    """
    current = engine.get("current")
    if runs and record is not None:
        to = engine.get("golive_asked") or "a release that could not be read"
        return f"a go-live to {to} is running: it is joined"
    if not current:
        return "nothing is live yet"
    if held is not None:
        identity = held.kept
    elif record is None:
        return "the model has to be pulled first"
    else:
        identity = release.id_with(str(record["model_digest"]))
    if current != identity:
        kept = ", which is held," if held is not None else ""
        return f"release {identity}{kept} instead of {current}"
    staged = (engine.get("releases") or {}).get(current)
    if not isinstance(staged, dict) or "error" in staged:
        return f"release {current} is no longer on the host in full"
    earlier = engine.get("golive")
    phase = earlier.get("phase") if isinstance(earlier, dict) else None
    if phase == "failed":
        return "the last go-live failed"
    if phase not in (None, "done", "reverted"):
        return f"an earlier go-live was interrupted (phase {phase})"
    if unit.get("active") != "active":
        return f"{ENGINE_UNIT.format(name=release.engine)} is {_state_of(unit)}"
    if unit.get("enabled") != "enabled":
        return "the engine would not come back after a reboot"
    started = engine.get("started") or {}
    if started.get("release") != identity:
        return f"release {started.get('release')} is still running"
    mended = record.get("mended") if record is not None else None
    when = mended.get("when") if isinstance(mended, dict) else None
    # The record is of the model that the settings ask for; a held release may have another one.
    if held is None and started.get("model_mended") != when:
        return "files of the model were mended since the engine was started"
    # An engine that was started before there was a binding has none, which is an empty one.
    changed = (started.get("binding") or digest_of_text("")) != digest_of_text(binding)
    # A held release keeps the binding that it came with: this one is of what the settings ask for.
    changed = changed and held is None
    # Masked facts do not tell, and the plan says so (facts.uuids-masked).
    if changed and not names_masked_gpus(binding):
        return "the host's binding has changed"
    return ""
