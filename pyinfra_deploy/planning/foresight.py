"""Everything that can be known of a host before anything is changed: its findings, its budget.

One function, used by `fleet plan` and by the deploy alike, so that both refuse the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.facts.hardware import Hardware
from pyinfra_deploy.facts.model_documents import ModelDocuments
from pyinfra_deploy.planning import compatibility
from pyinfra_deploy.planning.acceptance import accept
from pyinfra_deploy.planning.config_fields import parse_json
from pyinfra_deploy.planning.driver_install import (
    ABOUT_THE_OLD_DRIVER,
    plan_driver,
    with_new_driver,
)
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.hardware_findings import Demand, hardware_findings, uses_gpus
from pyinfra_deploy.planning.model_config import read_model
from pyinfra_deploy.planning.model_supply import NOT_LOCKED, LockedModel, supply_findings
from pyinfra_deploy.planning.node_engines import node_engines, node_engines_finding
from pyinfra_deploy.planning.parallelism import check_choice
from pyinfra_deploy.planning.placement import names_masked_gpus, place, placed_topology
from pyinfra_deploy.planning.runtime_facts import locked_runtime
from pyinfra_deploy.planning.start_figures import figures_of

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Mapping

    from pyinfra_deploy.planning.driver_install import DriverStep
    from pyinfra_deploy.planning.memory import MemoryBudget
    from pyinfra_deploy.planning.model_shape import ModelShape
    from pyinfra_deploy.planning.node_engines import NodeEngine
    from pyinfra_deploy.planning.parallelism import LayoutVerdict
    from pyinfra_deploy.planning.placement import Placement
    from pyinfra_deploy.settings.schema import Settings

SEVERITIES = ("refuse", "warn", "note")


@dataclass(frozen=True)
class KnownModel(ModelDocuments):
    """A model's documents, read. One object serves all hosts of a model, so that its index of a
    hundred thousand tensors is gone through once. locked: its lock, where settings name one."""

    locked: LockedModel = NOT_LOCKED

    @cached_property
    def bytes(self) -> int | None:
        return sum(self.listing.values()) if self.listing else None

    @cached_property
    def read(self) -> tuple[ModelShape | None, tuple[Finding, ...]]:
        """The model's shape, and what is to be said of its documents, without a host's name."""
        config = self.config
        if isinstance(config, str):
            config, problems = parse_json(config, "config.json", "")
            if config is None:
                return None, tuple(problems)
        if config is None:
            return None, ()
        found = read_model(config, self.index, self.listing, "")
        return found.shape, tuple(found.findings)


@dataclass(frozen=True)
class Foresight:
    """One host: what it is, what the engine would find there, and what is to be said of it.

    placement: the engine's GPUs, None where it has none or cannot have them. engines: one for each
    NUMA node, where the model fits on the GPUs of one. driver: what a deploy would install instead
    of everything else.
    """

    host: str
    hardware: Hardware
    shape: ModelShape | None
    budget: MemoryBudget | None
    findings: tuple[Finding, ...]
    placement: Placement | None = None
    engines: tuple[NodeEngine, ...] = ()
    driver: DriverStep | None = None

    @property
    def refused(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "refuse")

    @property
    def refused_for_sure(self) -> bool:
        """Whether it is refused for something that was found out, not only for what was not."""
        return any(finding.id not in UNKNOWN for finding in self.refused)

    @property
    def unread(self) -> bool:
        """Whether nothing at all is known of the host."""
        return any(finding.id == "host.not-collected" for finding in self.findings)

    @property
    def unknown(self) -> bool:
        """Whether something that decides could not be found out."""
        return bool(self.what_is_unknown)

    @property
    def what_is_unknown(self) -> tuple[Finding, ...]:
        # Of a host that gets its first driver nobody knows yet what GPUs it has.
        unseen = self.driver is not None and not self.hardware.gpus
        ids = UNKNOWN | {"driver.will-install"} if unseen else UNKNOWN
        return tuple(finding for finding in self.findings if finding.id in ids)


# Findings that say "could not be found out": they make `fleet plan` exit with 2.
# A host is refused for gpu.unread all the same: nothing is deployed on GPUs that nobody has seen.
UNKNOWN = frozenset({"model.unknown", "host.not-collected", "gpu.unread"})


# Refusals that say GPUs are missing, each for another cause.
MISSING = frozenset({"gpu.too-few", "gpu.fallen-off", "gpu.number-missing"})


def foresee(
    host: str,
    settings: Settings,
    hardware: Hardware,
    model: KnownModel,
    lock_text: str,
    today: datetime.date,
    more: Iterable[Finding] = (),
    model_on_host: bool = False,
    start: Mapping[str, Any] | None = None,
    planned: str | None = None,
    sources: Mapping[str, Any] | None = None,
) -> Foresight:
    """Judge one engine host. `more`: findings of other checks, to be accepted and sorted alike.
    model_on_host: it is pulled already, so that it needs no room on the disk. start, planned: what
    the engine that runs said of its memory (start_figures.recorded_start), and the release that the
    settings ask for: of the same release it replaces the estimate. sources: the snapshot's section
    `driver`; without it no driver is installed."""
    findings: list[Finding] = list(more)
    shape, about_model = _shape(host, settings, model)
    findings += about_model
    findings += supply_findings(host, settings, model.locked, tuple(model.listing or ()))
    facts = _facts(shape)
    runtime = locked_runtime(lock_text)
    findings += compatibility.check(hardware, settings, facts, runtime)
    demand = Demand(model.bytes, model_on_host)
    about_hardware = hardware_findings(hardware, settings, demand)
    findings += about_hardware
    budget, placement = None, None
    engines: tuple[NodeEngine, ...] = ()
    vllm = settings.runtime.vllm if settings.runtime else None
    if uses_gpus(settings) and hardware.gpus:
        placement, about_placement = place(hardware, settings)
        findings += [*about_placement, *_masked(hardware)]
    gpus = placement.gpus if placement is not None else hardware.gpus
    if shape is not None and gpus and uses_gpus(settings):
        args, links = settings.engine.args, placed_topology(hardware, gpus)
        figures = figures_of(start, planned, gpus)
        budget, about_memory = check_choice(shape, gpus, args, vllm, links, host, figures=figures)
        findings += _without_consequences(about_memory, about_hardware)
        if placement is not None and budget is not None:
            name = settings.engine.name
            engines = node_engines(hardware, placement, shape, args, vllm, name)
        if engines and budget is not None:
            findings.append(node_engines_finding(host, engines, budget.layout))
    driver, about_driver = plan_driver(settings, hardware, sources)
    if about_driver:
        findings = [one for one in findings if one.id not in ABOUT_THE_OLD_DRIVER]
        findings += about_driver
    if driver is not None and driver.version is not None:
        coming = with_new_driver(hardware, driver)
        findings += compatibility.check_driver(coming, settings, runtime)
    ordered = _judged(host, findings, settings, today)
    if any(finding.severity == "refuse" for finding in ordered):
        driver = None
    return Foresight(host, hardware, shape, budget, tuple(ordered), placement, engines, driver)


def foresee_plain(
    hardware: Hardware, settings: Settings, today: datetime.date, findings: Iterable[Finding]
) -> Foresight:
    """A host outside the group gpu: the engine's settings ask nothing of its hardware."""
    ordered = _judged(hardware.host, findings, settings, today)
    return Foresight(hardware.host, hardware, None, None, tuple(ordered))


def unknown_host(host: str, why: Finding) -> Foresight:
    """A host of which nothing was read."""
    return Foresight(host, Hardware(host), None, None, (why,))


def _judged(
    host: str, findings: Iterable[Finding], settings: Settings, today: datetime.date
) -> list[Finding]:
    accepted = accept(host, _distinct(findings), settings.accept_findings, today)
    return sorted(accepted, key=lambda finding: SEVERITIES.index(finding.severity))


def _shape(
    host: str, settings: Settings, model: KnownModel
) -> tuple[ModelShape | None, list[Finding]]:
    if settings.model is None:
        return None, []
    findings = []
    if model.problem:
        findings.append(
            Finding(
                "model.unknown",
                "warn",
                host,
                settings.model.id,
                "what the model is could not be found out, so its memory and layout are not judged",
                "make the hub reachable from here, or plan with --model-config DIR and its "
                "config.json, index and listing",
                evidence=model.problem,
            )
        )
    shape, about_documents = model.read
    return shape, [*findings, *(replace(finding, host=host) for finding in about_documents)]


def _facts(shape: ModelShape | None) -> compatibility.ModelFacts | None:
    if shape is None:
        return None
    quantization = shape.quantization
    return compatibility.ModelFacts(
        architecture=shape.architecture,
        model_type=shape.model_type,
        quant_method=quantization.method if quantization else None,
        quant_bits=quantization.bits if quantization else None,
        quant_is_float=quantization.floating if quantization else None,
        weight_block=quantization.block if quantization else None,
        dtype=shape.dtype,
    )


def _masked(hardware: Hardware) -> list[Finding]:
    if not any(names_masked_gpus(gpu.uuid or "") for gpu in hardware.gpus):
        return []
    return [
        Finding(
            "facts.uuids-masked",
            "note",
            hardware.host,
            "facts",
            "the GPUs' UUIDs are masked in these facts, so it is not known whether the engine is "
            "bound to the GPUs that it is to have",
            "collect the facts without --mask-uuids to see that too",
            evidence=str(hardware.gpus[0].uuid),
            source="fleet facts collect",
        )
    ]


def _without_consequences(
    about_memory: tuple[Finding, ...], about_hardware: tuple[Finding, ...]
) -> list[Finding]:
    """A layout that wants more GPUs than there are is refused once, for what is wrong with them."""
    if any(finding.id in MISSING and finding.severity == "refuse" for finding in about_hardware):
        return [finding for finding in about_memory if finding.id != "parallel.too-many-ranks"]
    return list(about_memory)


def _distinct(findings: Iterable[Finding]) -> list[Finding]:
    kept: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        kept.setdefault((finding.id, finding.subject, finding.message), finding)
    return list(kept.values())


def as_document(foresight: Foresight) -> dict[str, Any]:
    """For programs: plain values, as `fleet plan --json` prints them."""
    budget = foresight.budget
    hardware = foresight.hardware
    return {
        "host": foresight.host,
        "refused": bool(foresight.refused),
        "hardware": {
            "gpus": [
                {"index": gpu.index, "name": gpu.name, "uuid": gpu.uuid,
                 "memory_total_mib": gpu.memory_total_mib} for gpu in hardware.gpus
            ],
            "driver": hardware.driver_version,
            "cuda": hardware.cuda_version,
            "cpus": hardware.cpu_count,
            "memory_total_bytes": hardware.memory_total_bytes,
            "llm_mount": None if hardware.llm_mount is None else vars(hardware.llm_mount),
        },
        "model": foresight.shape.label if foresight.shape else None,
        "placement": _placement(foresight),
        "memory": None if budget is None else {
            "layout": str(budget.layout),
            "source": budget.source,
            "weights_bytes": budget.weights_bytes,
            "available_bytes": _range(budget.available),
            "kv_bytes_per_token": budget.cache_bytes_per_token,
            "tokens": _range(budget.tokens),
            "requests_at_max_model_len": _range(budget.requests),
            "requests_at_typical_length": _range(budget.typical_requests),
            "typical_tokens": budget.typical_tokens,
            "longest_context": _range(budget.longest_context),
        },
        "findings": [
            {key: getattr(finding, key) for key in (
                "id", "severity", "subject", "message", "evidence", "fix", "source")}
            for finding in foresight.findings
        ],
    }  # fmt: skip


def layouts_document(verdicts: Iterable[LayoutVerdict]) -> list[dict[str, Any]]:
    """For programs: every layout, the best first. fits: yes, maybe or no; null where vLLM refuses
    the layout before memory matters."""
    return [
        {
            "layout": str(one.layout),
            "arguments": one.layout.arguments(),
            "legal": one.legal,
            "fits": None if one.budget is None else ("yes", "maybe", "no")[one.fits],
            "gpus_idle": one.idle,
            "why": one.why,
            "reasons_against": list(one.reasons),
            "weights_bytes": one.budget.weights_bytes if one.budget else None,
            "available_bytes": _range(one.budget.available) if one.budget else None,
            "requests_at_typical_length": _range(one.budget.typical_requests)
            if one.budget
            else None,
        }
        for one in verdicts
    ]


def _placement(foresight: Foresight) -> dict[str, Any] | None:
    placement = foresight.placement
    if placement is None:
        return None
    return {
        "gpus": [gpu.index for gpu in placement.gpus],
        "uuids": [gpu.uuid for gpu in placement.gpus],
        "numa_nodes": list(placement.nodes),
        "farthest_link_in_tensor_group": placement.link,
        "bound_by": placement.bound_by,
        "cpus": placement.cpus or None,
        "why": placement.why,
        "engine_per_node": [
            {"numa_node": one.node, "gpus": [gpu.index for gpu in one.gpus], "cpus": one.cpus,
             "layout": str(one.layout), "uuids": [gpu.uuid for gpu in one.gpus],
             "environment": dict(one.environment), "unit": dict(one.directives),
             "socket": one.socket} for one in foresight.engines
        ],
    }  # fmt: skip


def _range(value: Any) -> dict[str, float] | None:
    if value is None:
        return None
    return {"low": value.low, "middle": value.middle, "high": value.high}
