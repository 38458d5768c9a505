"""The whole decision about one host: what is wanted, what is there, what has to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning import door_plan, driver_install, wanted
from pyinfra_deploy.planning.certificate import acme_in_words
from pyinfra_deploy.planning.conda_ground import plan_conda_ground
from pyinfra_deploy.planning.engine_care import plan_engine_care
from pyinfra_deploy.planning.engine_plan import go_live_findings, plan_engine
from pyinfra_deploy.planning.gateway_plan import (
    CONFIGURATION_DIFFERS,
    gateway_findings,
    plan_gateway,
)
from pyinfra_deploy.planning.hold import hold_findings
from pyinfra_deploy.planning.host_care import NO_CARE, Care, plan_care
from pyinfra_deploy.planning.host_files import (
    SYSUSERS,
    TMPFILES,
    changed_files,
    managed_files,
    stale_files,
    without_drop_in,
)
from pyinfra_deploy.planning.interpreter import with_python
from pyinfra_deploy.planning.model_care import plan_model_care
from pyinfra_deploy.planning.model_supply import lock_findings
from pyinfra_deploy.planning.overtaking import overtaking_findings
from pyinfra_deploy.planning.preflight import preflight
from pyinfra_deploy.planning.rejected import rejected_findings
from pyinfra_deploy.planning.runtime_room import room_findings
from pyinfra_deploy.planning.verification import unverified_reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.facts.hardware import Hardware
    from pyinfra_deploy.planning.artefacts import Artefacts
    from pyinfra_deploy.planning.driver_install import DriverStep
    from pyinfra_deploy.planning.engine_plan import Release
    from pyinfra_deploy.planning.finding import Finding
    from pyinfra_deploy.planning.hold import Hold
    from pyinfra_deploy.planning.placement import Placement
    from pyinfra_deploy.planning.wanted import Environment, ManagedFile
    from pyinfra_deploy.settings.schema import Settings


@dataclass(frozen=True)
class HostPlan:
    """What a run will do on one host. Empty fields mean that nothing has to change there."""

    host: str
    groups: frozenset[str]
    settings: Settings
    findings: tuple[Finding, ...] = ()
    packages: tuple[str, ...] = ()
    program: bool = False
    files: tuple[ManagedFile, ...] = ()
    remove: tuple[str, ...] = ()
    base: bool = False
    daemon_reload: bool = False
    map_count: int | None = None
    care: Care = NO_CARE
    driver: DriverStep | None = None
    tools: tuple[Environment, ...] = ()
    conda_terms: str = ""
    runtime: Environment | None = None
    pull: Mapping[str, Any] | None = None
    release: Release | None = None
    binding: str = ""
    unit_binding: str = ""
    gpus: tuple[str, ...] = ()
    go_live: str = ""
    serving: bool = False
    model_digest: str | None = None
    held: Hold | None = None
    gateway_environment: Environment | None = None
    gateway_name: str = ""
    gateway_activate: str = ""
    gateway_shape: str = ""
    gateway_text: str | None = None
    gateway_leaves_full: bool = False
    keys: bool = False
    certificate: str = ""
    acme: str = ""
    nginx: str = ""
    host_certificate: str = ""
    door: str = ""
    verify: str = ""
    generation: int = 0
    lease: Mapping[str, Any] | None = None
    ended_run: str = ""

    @property
    def refused(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "refuse")

    def on(self, group: str) -> bool:
        return group in self.groups

    def reasons(self) -> list[str]:
        """What will change, in words, in the order in which it happens."""
        lines = (
            [f"clear the lease of a run that ended ({self.ended_run})"] if self.ended_run else []
        )
        if self.packages:
            lines.append(f"install {', '.join(self.packages)}")
        if self.program:
            lines.append("install the host program")
        if self.base or self.files or self.daemon_reload:
            paths = ", ".join(file.path for file in self.files) or "users and directories"
            lines.append(f"write {paths}")
        lines += [f"remove {path}" for path in self.remove]
        if self.map_count is not None:
            lines.append(f"raise vm.max_map_count to {self.map_count}")
        lines += [self.driver.reason()] if self.driver is not None else []
        lines += self.care.reasons()
        lines += [f"install {tool.label}" for tool in self.tools]
        lines += [self.conda_terms] if self.conda_terms else []
        if self.runtime is not None:
            lines.append(f"install {self.runtime.label} as {self.runtime.name}")
        if self.pull is not None:
            at = self.pull.get("directory") or self.pull["revision"]
            lines.append(f"pull {self.pull['model_id']} at {at}")
        if self.go_live:
            lines.append(f"go live: {self.go_live}")
        if self.gateway_environment is not None:
            lines.append("install the gateway service")
        if self.keys:
            lines.append("push the API keys' digests")
        if self.gateway_activate:
            lines.append(f"bring the gateway service up to date: {self.gateway_activate}")
        if self.certificate:
            lines.append(f"issue a certificate: {self.certificate}")
        if self.host_certificate:
            lines.append(f"issue a certificate for other hosts: {self.host_certificate}")
        if self.nginx:
            lines.append(f"apply Nginx's configuration: {self.nginx}")
        lines += [acme_in_words(self.acme)] if self.acme else []
        if self.door:
            lines.append(f"apply the engine's door: {self.door}")
        if self.verify:
            lines.append(f"verify through HTTPS: {self.verify}")
        return lines

    @property
    def release_id(self) -> str | None:
        """Of the release that the settings ask for; None before its model is on the host."""
        if self.release is None or self.model_digest is None:
            return None
        return self.release.id_with(self.model_digest)

    @property
    def gateway_at_go_live(self) -> bool:
        """Whether the go-live also gives the gateway service its configuration, which names the
        model and its length: before the next host is touched, and only where nothing else of the
        service changes."""
        return bool(
            self.go_live
            and self.serving
            and self.gateway_activate == CONFIGURATION_DIFFERS
            and not self.gateway_environment
        )

    @property
    def verified_at_go_live(self) -> bool:
        """Whether the go-live itself ends with the verification: on a host that serves, through a
        gateway that this run does not change, before the next host is touched."""
        service = self.gateway_activate and not self.gateway_at_go_live
        gateway = self.gateway_environment or service or self.certificate
        return bool(
            self.on("gateway") and self.go_live and self.serving and not (gateway or self.nginx)
        )

    @property
    def changes(self) -> bool:
        return bool(self.reasons())


def plan_host(
    host: str,
    groups: frozenset[str],
    settings: Settings,
    snapshot: Mapping[str, Any],
    artefacts: Artefacts,
    placement: Placement | None = None,
    hardware: Hardware | None = None,
    driver: DriverStep | None = None,
) -> HostPlan:
    """Compare settings with a snapshot. Pure: the same input gives the same plan.

    placement: the engine's GPUs, where they were read. It counts only where it computes on them.
    hardware: as read; without it nothing is decided about fans and the driver. driver: what this
    run installs instead of everything else.
    """
    groups = door_plan.with_door(groups, artefacts)
    if settings.runtime is None or settings.runtime.device != "cuda":
        placement = None
    settings = with_python(settings, artefacts.runtime_lock, artefacts.conda_lock, snapshot)
    findings = preflight(host, groups, settings, snapshot)
    if "gpu" in groups:
        findings = (*findings, *lock_findings(host, settings, artefacts.model))
    findings = (*findings, *door_plan.door_findings(host, snapshot, artefacts))
    if any(finding.severity == "refuse" for finding in findings):
        return HostPlan(host=host, groups=groups, settings=settings, findings=findings)
    taken = overtaking_findings(host, groups, settings, snapshot, artefacts.ca_subject)
    state = snapshot.get("state") or {}
    installed = snapshot.get("packages") or {}
    environments = snapshot.get("environments") or {}
    plan: dict[str, Any] = {
        "host": host,
        "groups": groups,
        "settings": settings,
        "findings": (*findings, *taken),
        "packages": tuple(
            name for name in wanted.packages(groups, settings, snapshot) if not installed.get(name)
        ),
        "program": state.get("program_digest") != artefacts.program_digest,
        "files": changed_files(managed_files(groups, settings, artefacts, placement), snapshot),
        "remove": stale_files(groups, settings, placement, snapshot, driver),
        "base": _base_changes(groups, settings, snapshot),
        "daemon_reload": any(
            unit.get("need_reload") for unit in (snapshot.get("units") or {}).values()
        ),
        "generation": int(state.get("generation") or 0),
        "lease": state.get("lease"),
        "ended_run": _ended_run(state),
    }
    python = wanted.tools_python(snapshot)
    uv = wanted.uv_environment(settings, artefacts.uv_lock, python)
    plan["tools"] = _missing_tools(groups, settings, artefacts, environments, uv, python)
    if "gpu" in groups:
        plan |= plan_engine(settings, snapshot, artefacts, environments, uv, placement)
        plan |= without_drop_in(settings, snapshot, plan)
        if driver is not None:
            return HostPlan(**_before_the_driver(plan, driver, snapshot, artefacts))
        plan |= plan_conda_ground(host, settings, snapshot, plan)
        room = room_findings(host, settings.llm_root, snapshot, plan["runtime"])
        running = go_live_findings(host, settings, snapshot, plan)
        held = hold_findings(host, settings.engine.name, plan)
        taken_back = rejected_findings(host, settings.engine.name, snapshot, plan)
        plan["findings"] = (*plan["findings"], *room, *running, *held, *taken_back)
        if any(finding.severity == "refuse" for finding in plan["findings"]):
            return HostPlan(host=host, groups=groups, settings=settings, findings=plan["findings"])
        care = plan_engine_care(settings, snapshot, artefacts.units)
        care = care.joined(plan_model_care(settings, snapshot, artefacts.units))
        if hardware is not None:
            care = care.joined(plan_care(settings, snapshot, hardware, artefacts.units))
        plan |= {"care": care, "files": plan["files"] + care.files}
    if "gateway" in groups:
        plan |= plan_gateway(
            groups, settings, snapshot, artefacts, environments, uv, python, plan.get("held")
        )
        about = gateway_findings(host, settings, snapshot, artefacts)
        plan["findings"] = (*plan["findings"], *about)
    plan |= door_plan.plan_door(groups, settings, snapshot, artefacts)
    result = HostPlan(**plan)
    why = _verify_reason(result, snapshot)
    return HostPlan(**(plan | {"verify": why})) if why else result


def _ended_run(state: Mapping[str, Any]) -> str:
    """Whose run of this machine is dead and has left its lease, at which others would wait."""
    lease = state.get("lease")
    if not state.get("lease_of_dead_run") or not isinstance(lease, dict):
        return ""
    return str(lease.get("owner"))


def _before_the_driver(
    plan: Mapping[str, Any],
    driver: DriverStep,
    snapshot: Mapping[str, Any],
    artefacts: Artefacts,
) -> dict[str, Any]:
    """The driver, and only what its job needs: the rest waits for a host whose GPUs are known."""
    ground = [file for file in plan["files"] if file.path in (SYSUSERS, TMPFILES)]
    unit = changed_files((artefacts.units[driver_install.UNIT],), snapshot)
    settings: Settings = plan["settings"]
    engines = snapshot.get("engines") or {}
    # Also where it is stopped: an interrupted installation has left it so, and its end is to see
    # the engine serve again.
    live = engines.get(settings.engine.name)
    kept = ("host", "groups", "settings", "findings", "program", "base", "daemon_reload",
            "serving", "generation", "lease", "ended_run")  # fmt: skip
    return {key: plan[key] for key in kept} | {
        "packages": tuple(name for name in plan["packages"] if name == "python3"),
        "files": (*ground, *unit),
        "driver": driver.with_live(live or {}, settings.served_model_name),
    }


def _base_changes(groups: frozenset[str], settings: Settings, snapshot: Mapping[str, Any]) -> bool:
    """Whether a user, a membership or a directory is missing or differs."""
    users = snapshot.get("users") or {}
    for name in wanted.service_users(groups):
        seen = users.get(name)
        if not seen:
            return True
        if name != wanted.BUILD_USER and wanted.SOCKET_GROUP not in seen.get("groups", []):
            return True
    found = snapshot.get("files") or {}
    for path, (mode, owner, group) in wanted.directories(settings.llm_root).items():
        seen = found.get(path)
        if not seen or (seen.get("mode"), seen.get("owner"), seen.get("group")) != (
            mode,
            owner,
            group,
        ):
            return True
    return False


def _missing_tools(
    groups: frozenset[str],
    settings: Settings,
    artefacts: Artefacts,
    environments: Mapping[str, Any],
    uv: Environment,
    python: str,
) -> tuple[Environment, ...]:
    tools = [uv] if wanted.installer_of(settings) == "uv" else []
    if "gpu" in groups:
        tools.append(
            wanted.modelscope_environment(
                settings, artefacts.modelscope_lock, python, f"{uv.path}/bin/uv"
            )
        )
    return tuple(tool for tool in tools if wanted.missing(tool, environments))


def _verify_reason(plan: HostPlan, snapshot: Mapping[str, Any]) -> str:
    if not plan.on("gateway"):
        return ""
    if plan.go_live:
        return "after a go-live"
    if plan.nginx or plan.certificate or plan.gateway_activate:
        return "after a change of the gateway"
    return unverified_reason(snapshot, plan.settings.engine.name if plan.on("gpu") else None)
