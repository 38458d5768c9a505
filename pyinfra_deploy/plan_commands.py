"""`fleet plan`: what each host is, what would run on it, what would fail; nothing is changed."""

from __future__ import annotations

import contextlib
import datetime
import gc
import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyinfra_deploy import facts_commands, plan_report, playbook_plan
from pyinfra_deploy.deploys.artefacts import artefacts_for
from pyinfra_deploy.facts import raw
from pyinfra_deploy.facts.assemble import assemble
from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.operations import packing
from pyinfra_deploy.operations.model_source import known_model, model_is_on_host
from pyinfra_deploy.planning import host_plan, rejected
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.foresight import (
    Foresight,
    KnownModel,
    as_document,
    foresee,
    foresee_plain,
    layouts_document,
    unknown_host,
)
from pyinfra_deploy.planning.interpreter import with_python
from pyinfra_deploy.planning.parallelism import all_layouts
from pyinfra_deploy.planning.placement import engine_gpus, placed_topology
from pyinfra_deploy.planning.preflight import os_facts, preflight, preflight_from_facts
from pyinfra_deploy.planning.start_figures import recorded_start
from pyinfra_deploy.planning.upgrade import upgrade_findings
from pyinfra_deploy.settings.fleet import hosts_sharing, load_fleet
from pyinfra_deploy.settings.mutual_tls import as_data, mutual_tls_of
from pyinfra_deploy.settings.remote_engines import remote_engines
from pyinfra_deploy.shares import in_shares

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from pyinfra_deploy.planning.host_plan import HostPlan
    from pyinfra_deploy.planning.parallelism import LayoutVerdict
    from pyinfra_deploy.settings.fleet import Fleet, FleetHost
    from pyinfra_deploy.settings.schema import Settings

REFUSED = 1
UNKNOWN = 2


def register(commands: Any) -> None:
    """Add `plan`; `commands` is argparse's object for subcommands, which has no public type."""
    plan = commands.add_parser(
        "plan",
        help="what each host is, what would run on it and what would fail; changes nothing",
        epilog="exit code: 0 nothing refused, 1 something refused, 2 something not found out",
    )
    plan.add_argument("inventory", help="prod, inventories/prod.py or inventories/prod/hosts.yml")
    facts_commands.add_choice(plan)
    plan.add_argument(
        "--facts", type=Path, metavar="DIR", help="plan from `fleet facts collect`, touch no host"
    )
    plan.add_argument(
        "--model-config",
        type=Path,
        metavar="DIR",
        help="config.json, index and listing.json from here, not from the hub",
    )
    plan.add_argument("--layouts", action="store_true", help="every layout of the GPUs, and why")
    plan.add_argument(
        "--playbooks",
        action="store_true",
        help="also run those of the settings in check mode: Ansible connects, and changes nothing",
    )
    plan.add_argument("--json", action="store_true", help="for programs")
    plan.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    if arguments.playbooks and arguments.facts is not None:
        print("--playbooks connects to hosts and --facts touches none: give one", file=sys.stderr)
        return UNKNOWN
    fleet = load_fleet(arguments.inventory)
    hosts = facts_commands.chosen(fleet, arguments.limit, arguments.exclude)
    read = read_hosts(fleet, hosts, arguments.facts, arguments.model_config)
    found, not_read, printed = [(one.foresight, one.changes) for one in read.found], *read[1:]
    reached = [host for host in hosts if host not in not_read]
    checked = playbook_plan.check_mode(fleet, reached) if arguments.playbooks else None
    if arguments.json:
        document = _document(found, not_read, fleet, layouts=arguments.layouts)
        document["playbooks"] = checked
        print(json.dumps(document, indent=2))
    else:
        # Before the plan, whose last line says of which hosts something was not found out.
        for line in printed.splitlines()[-20:] if not_read else ():
            print(f"  | {line}", file=sys.stderr, flush=True)
        for line in (
            playbook_plan.lines(fleet, hosts)
            if checked is None
            else playbook_plan.check_lines(checked)
        ):
            print(line)
        _print(found, not_read, fleet, layouts=arguments.layouts)
    foresights = [foresight for foresight, _ in found]
    if any(one.refused_for_sure for one in foresights):
        return REFUSED
    unknown = not_read or any(one.unknown for one in foresights)
    return UNKNOWN if unknown or (checked and playbook_plan.any_failed(checked)) else 0


@dataclass(frozen=True)
class Foreseen:
    """One host as it was read and planned. plan: None where it is refused, or nothing is known of
    what is on it. snapshot: None where the facts have none."""

    foresight: Foresight
    plan: HostPlan | None = None
    snapshot: Mapping[str, Any] | None = None

    @property
    def changes(self) -> list[str] | None:
        """What a deploy would change; None where that is not known."""
        return self.plan.reasons() if self.plan is not None else None


class Read(NamedTuple):
    """found: of each host that could be read. printed: what was said while reading."""

    found: list[Foreseen]
    not_read: list[str]
    printed: str


def read_hosts(
    fleet: Fleet,
    hosts: Sequence[str],
    facts: Path | None = None,
    model_config: Path | None = None,
) -> Read:
    """Read hosts and plan each of them; nothing is changed. facts: read before, into a directory"""
    with _without_collector(), tempfile.TemporaryDirectory(prefix="fleet-plan-") as scratch:
        directory, not_read, printed = _facts(fleet, hosts, facts, Path(scratch))
        known = [fleet.hosts[host] for host in hosts if host not in not_read]
        found = in_shares(lambda host: _host(fleet, host, directory, model_config), known)
    return Read(found, not_read, printed)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """What is read of hosts lives until the end: looking through it for garbage, time and again,
    took a tenth of a plan for a hundred hosts."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _facts(
    fleet: Fleet, hosts: Sequence[str], given: Path | None, scratch: Path
) -> tuple[Path, list[str], str]:
    """(DIR, hosts that could not be read, what was printed while reading)."""
    if given is not None:
        return given, [], ""
    missed, printed = facts_commands.collect(fleet, hosts, scratch)
    return scratch, missed, printed


def _host(fleet: Fleet, host: FleetHost, directory: Path, model_config: Path | None) -> Foreseen:
    settings, today = host.settings, datetime.datetime.now(datetime.UTC).date()
    try:
        outputs = raw.read_directory(directory / host.name)
    except UnreadableOutput as error:
        # Nothing is judged: what is not known would be taken for absent.
        return Foreseen(unknown_host(host.name, _not_collected(host.name, directory, error)))
    more: list[Finding] = []
    hardware = assemble(host.name, outputs, settings.llm_root)
    snapshot = _snapshot(outputs)
    if snapshot is not None:
        settings = with_python(settings, *_locks(settings, fleet.root), snapshot)
        if settings.runtime is not None and settings.runtime.conda is not None:
            # Whether conda is asked for anything depends on what is to be built.
            more += _host_plan(fleet, host, snapshot, None).findings
        else:
            more += preflight(host.name, host.groups, settings, snapshot)
    else:
        settings = with_python(settings, *_locks(settings, fleet.root), os_facts(hardware))
        more += preflight_from_facts(host.groups, settings, hardware)
    if "gpu" not in host.groups:
        foresight = foresee_plain(hardware, settings, today, more)
        if snapshot is None or foresight.refused:
            return Foreseen(foresight, snapshot=snapshot)
        return Foreseen(foresight, _host_plan(fleet, host, snapshot, None), snapshot)
    more += upgrade_findings(host.name, settings, snapshot)
    model = _model(fleet, settings, model_config)
    lock, _ = _locks(settings, fleet.root)
    on_host = model_is_on_host(settings, snapshot, model.locked.lock)
    start = recorded_start(snapshot, settings.engine.name)
    planned = None
    if start is not None and snapshot is not None:
        planned = _host_plan(fleet, host, snapshot, None).release_id
    foresight = foresee(
        host.name, settings, hardware, model, lock, today, more, on_host, start, planned,
        sources=snapshot.get("driver") if snapshot is not None else None,
    )  # fmt: skip
    if snapshot is None or foresight.refused:
        return Foreseen(foresight, snapshot=snapshot)
    plan = _host_plan(fleet, host, snapshot, foresight)
    if plan.refused:
        # For what only the comparison with the host tells, such as a go-live that runs there.
        refused = replace(foresight, findings=(*foresight.findings, *plan.refused))
        return Foreseen(refused, snapshot=snapshot)
    told = tuple(finding for finding in plan.findings if finding.id == rejected.ID)
    foresight = replace(foresight, findings=(*foresight.findings, *told))
    return Foreseen(foresight, plan, snapshot)


def _locks(settings: Settings, root: Path) -> tuple[str, str]:
    """(the runtime's lock, conda's), each "" where there is none."""
    runtime = settings.runtime
    if runtime is None:
        return "", ""
    conda = packing.lock_text(runtime.conda.lock, root) if runtime.conda is not None else ""
    return packing.lock_text(runtime.lock, root), conda


def _model(fleet: Fleet, settings: Settings, model_config: Path | None) -> KnownModel:
    if settings.model is None:
        return KnownModel()
    return known_model(settings.model, fleet.root, model_config)


def _snapshot(outputs: Mapping[str, raw.RawOutput]) -> Mapping[str, Any] | None:
    output = outputs.get(raw.SNAPSHOT)
    if output is None:
        return None
    try:
        document = json.loads(output.text)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "os" in document else None


def _not_collected(host: str, directory: Path, error: UnreadableOutput) -> Finding:
    return Finding(
        "host.not-collected",
        "warn",
        host,
        "facts",
        "nothing is known of this host",
        f"fleet facts collect INVENTORY -o {directory} --limit {host}",
        evidence=str(error),
    )


def _host_plan(
    fleet: Fleet, host: FleetHost, snapshot: Mapping[str, Any], foresight: Foresight | None
) -> HostPlan:
    more = {
        "sharing": hosts_sharing(fleet, host),
        "engines": remote_engines(fleet, host),
        "mutual_tls": as_data(mutual_tls_of(fleet, host)),
    }
    artefacts = artefacts_for(_data(fleet) | more, host.settings)
    seen = (foresight.placement, foresight.hardware, foresight.driver) if foresight else ()
    return host_plan.plan_host(host.name, host.groups, host.settings, snapshot, artefacts, *seen)


def _data(fleet: Fleet) -> dict[str, Any]:
    return {"name": fleet.name, "directory": str(fleet.directory), "root": str(fleet.root)}


def _document(
    found: Sequence[tuple[Foresight, list[str] | None]],
    not_read: Sequence[str],
    fleet: Fleet,
    *,
    layouts: bool,
) -> dict[str, Any]:
    """`layouts` of a host is null unless it was asked for: with --layouts, the best first."""
    return {
        "hosts": [
            as_document(foresight)
            | {
                "layouts": layouts_document(_layouts(foresight, fleet)) if layouts else None,
                "changes": changes,
            }
            for foresight, changes in found
        ],
        "not_read": list(not_read),
    }


def _layouts(foresight: Foresight, fleet: Fleet) -> tuple[LayoutVerdict, ...]:
    """Of the GPUs that the engine may have, in the order in which it would take them."""
    settings = fleet.hosts[foresight.host].settings
    gpus = engine_gpus(foresight.hardware, settings, foresight.placement)
    if foresight.shape is None or not gpus:
        return ()
    return all_layouts(
        foresight.shape,
        gpus,
        settings.engine.args,
        settings.runtime.vllm if settings.runtime else None,
        placed_topology(foresight.hardware, gpus),
        foresight.host,
    )


def _print(
    found: Sequence[tuple[Foresight, list[str] | None]],
    not_read: Sequence[str],
    fleet: Fleet,
    *,
    layouts: bool,
) -> None:
    for group in plan_report.groups(found):
        print(group.text)
        verdicts = _layouts(group.first, fleet) if layouts else ()
        if verdicts:
            print("  layouts, the best first:")
            print(plan_report.layouts_text(verdicts, group.first.engines))
        print()
    print(plan_report.summary([foresight for foresight, _ in found], not_read))
