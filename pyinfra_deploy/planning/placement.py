"""Which GPUs an engine gets, in which order, and what it is bound to.

An engine whose GPUs lie on one NUMA node is bound to it by its unit. One that spans nodes is not:
its workers would all get their memory from one of them. There vLLM's own --numa-bind can bind each
worker to its GPU's node; it is left to the operator, since nobody has measured a gain yet
(vllm-project/vllm#30492).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from packaging.version import Version

from pyinfra_deploy.facts.hardware import Topology
from pyinfra_deploy.planning.engine_choice import parse_version, read_choice
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.gpu_order import (
    LINK_DISTANCE,
    UNKNOWN_DISTANCE,
    arranged,
    widest_tensor_step,
)
from pyinfra_deploy.planning.gpu_table import index_ranges
from pyinfra_deploy.planning.numa_binding import worker_binding_findings
from pyinfra_deploy.planning.numa_nodes import cpu_set, nodes_of, rows
from pyinfra_deploy.planning.release import digest_of
from pyinfra_deploy.planning.wanted import ManagedFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyinfra_deploy.facts.hardware import Gpu, Hardware, LinkClass, NumaNode
    from pyinfra_deploy.planning.engine_choice import EngineChoice
    from pyinfra_deploy.planning.gpu_order import Distances
    from pyinfra_deploy.planning.layout import Layout
    from pyinfra_deploy.settings.schema import Settings

GIB = 2**30
# UUIDs in CUDA_VISIBLE_DEVICES: vllm/platforms/interface.py takes each entry for a number up to
# 0.23 at least (vllm#32569), so that a start ends in "invalid literal for int()"; 0.28.0 and 0.32.0
# look them up. Numbers work in all, and are nvidia-smi's with CUDA_DEVICE_ORDER=PCI_BUS_ID.
UUIDS_SINCE = Version("0.28.0")


@dataclass(frozen=True)
class Placement:
    """An engine's place on its host.

    gpus: in the order of ranks. nodes: the NUMA node of each, None where it is not known. link: the
    farthest step inside a tensor parallel group, None where that is not known or there is no step.
    bound_by: unit: CPUs and memory of one node, by the engine's unit; vllm: each worker by vLLM's
    --numa-bind; none: by nothing. why: the reason, for whoever reads the plan. cpus: those that the
    unit binds to, a Linux list.
    """

    gpus: tuple[Gpu, ...]
    nodes: tuple[int | None, ...]
    link: LinkClass | None
    bound_by: Literal["unit", "vllm", "none"]
    why: str
    cpus: str = ""

    @property
    def node(self) -> int | None:
        """The one node that all of its GPUs lie on; None where they do not, or it is not known."""
        return self.nodes[0] if len(set(self.nodes)) == 1 else None

    def __str__(self) -> str:
        noun = "GPU" if len(self.gpus) == 1 else "GPUs"
        text = f"{noun} {index_ranges([gpu.index for gpu in self.gpus])}"
        order = [gpu.index for gpu in self.gpus]
        if order != sorted(order):
            text += f" in the order {', '.join(map(str, order))}"
        known = sorted({node for node in self.nodes if node is not None})
        if known and None not in self.nodes:
            text += f" on NUMA node{'s' if len(known) > 1 else ''} {index_ranges(known)}"
        if self.link is not None:
            text += f", {self.link} at most within a tensor parallel group"
        return f"{text}; {self.why}"


def place(hardware: Hardware, settings: Settings) -> tuple[Placement | None, tuple[Finding, ...]]:
    """The engine's place on a host, and what is to be said about it.

    None where there is no place: too few GPUs, or GPUs split by MIG, for which other findings
    refuse the host; or engine.gpus names GPUs that are not there.
    """
    choice, _ = read_choice(settings.engine.args, hardware.host)
    candidates, findings = _candidates(hardware, settings)
    if findings or len(candidates) < choice.layout.gpus:
        return None, findings
    if any(gpu.mig_enabled for gpu in candidates):
        return None, ()
    nodes, about_nodes = nodes_of(hardware, candidates)
    distances = _distances(hardware, candidates, nodes)
    order = arranged(distances, nodes, choice.layout)
    gpus = tuple(candidates[at] for at in order)
    used = {gpu.index for gpu in gpus}
    if used != {gpu.index for gpu in candidates}:
        # What is unknown of GPUs that the engine does not take is not its matter.
        _, about_nodes = nodes_of(hardware, gpus)
    own_nodes = tuple(nodes[at] for at in order)
    found = [*about_nodes] if settings.engine.numa == "auto" else []
    found += _order_unknown(hardware, choice.layout, candidates)
    found += worker_binding_findings(hardware, settings, own_nodes)
    widest = widest_tensor_step(distances, order, choice.layout)
    placement = _bound(hardware, settings, choice, gpus, own_nodes, _class_of(hardware, widest))
    if isinstance(placement, Finding):
        found.append(placement)
        placement = Placement(
            gpus, own_nodes, _class_of(hardware, widest), "none", placement.message
        )
    return placement, tuple(found)


def engine_gpus(
    hardware: Hardware, settings: Settings, placement: Placement | None
) -> tuple[Gpu, ...]:
    """The GPUs that engine.gpus leaves to the engine: those it is placed on in their order, then
    the others; none where engine.gpus names GPUs that are not there."""
    candidates, findings = _candidates(hardware, settings)
    if findings:
        return ()
    placed = placement.gpus if placement is not None else ()
    taken = {gpu.index for gpu in placed}
    return (*placed, *(gpu for gpu in candidates if gpu.index not in taken))


def environment_of(placement: Placement | None, vllm_version: str | None) -> dict[str, str]:
    """The host's part of the engine's environment. A change of it restarts the engine, so it also
    names what the unit binds to."""
    if placement is None:
        return {}
    version = parse_version(vllm_version)
    uuids = [gpu.uuid for gpu in placement.gpus]
    by_uuid = version is not None and version >= UUIDS_SINCE and all(uuids)
    names = uuids if by_uuid else [str(gpu.index) for gpu in placement.gpus]
    found = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(name) for name in names),
    }
    if placement.bound_by == "unit":
        found["FLEET_PLACEMENT"] = digest_of(_directives(placement))[:16]
    return found


# What `fleet facts collect --mask-uuids` writes (files/fleet_host/collect.py, mask_uuids).
_MASKED = re.compile(r"GPU-([0-9a-f]{8})-0000-0000-0000-0000\1")


def names_masked_gpus(text: str) -> bool:
    """Whether a text of GPU names has UUIDs that were masked, which tell no GPU from another."""
    return bool(_MASKED.search(text))


def drop_in_path(engine: str) -> str:
    return f"/etc/systemd/system/llm-engine@{engine}.service.d/placement.conf"


def drop_in(engine: str, placement: Placement | None) -> ManagedFile | None:
    """The part of the engine's unit that binds it; None where the unit binds nothing."""
    if placement is None or placement.bound_by != "unit":
        return None
    lines = "".join(f"{name}={value}\n" for name, value in _directives(placement))
    text = (
        f"# GPUs {index_ranges([gpu.index for gpu in placement.gpus])} of this engine lie on NUMA "
        f"node {placement.node}. Written by the deploy; engine.numa: off removes it.\n[Service]\n"
    )
    return ManagedFile(drop_in_path(engine), text + lines)


def _directives(placement: Placement) -> list[tuple[str, str]]:
    return node_directives(placement.node, placement.cpus)


def node_directives(node: int | None, cpus: str) -> list[tuple[str, str]]:
    """systemd.exec(5). A strict policy wants its node's CPUs too (Red Hat's guide on systemd and
    NUMA)."""
    return [("CPUAffinity", cpus), ("NUMAPolicy", "bind"), ("NUMAMask", str(node))]


def placed_topology(hardware: Hardware, gpus: Sequence[Gpu]) -> Topology | None:
    """The links between these GPUs, in this order; None where they are not known."""
    row = rows(hardware)
    if hardware.topology is None or any(gpu.index not in row for gpu in gpus):
        return None
    at = [row[gpu.index] for gpu in gpus]
    links = hardware.topology.links
    return Topology(links=tuple(tuple(links[one][other] for other in at) for one in at))


def node_cpus(hardware: Hardware, node: int) -> NumaNode | None:
    """The node, if CPUs and memory can be had from it."""
    for one in hardware.numa:
        if one.node == node and cpu_set(one.cpus) and one.memory_total_bytes != 0:
            return one
    return None


def _candidates(
    hardware: Hardware, settings: Settings
) -> tuple[tuple[Gpu, ...], tuple[Finding, ...]]:
    wanted = settings.engine.gpus
    if wanted == "all":
        return tuple(sorted(hardware.gpus, key=lambda gpu: gpu.index)), ()
    by_name: dict[str | int, Gpu] = {}
    for gpu in hardware.gpus:
        by_name[gpu.index] = gpu
        if gpu.uuid:
            by_name[gpu.uuid.lower()] = gpu
    found: dict[int, Gpu] = {}
    missing: list[str] = []
    twice: list[str] = []
    for name in wanted:
        chosen = by_name.get(name.lower() if isinstance(name, str) else name)
        if chosen is None:
            missing.append(str(name))
        elif chosen.index in found:
            twice.append(f"{name} is GPU {chosen.index}")
        else:
            found[chosen.index] = chosen
    findings = []
    # With no GPU listed at all the host is refused for that.
    if missing and hardware.gpus:
        findings.append(_missing(hardware, missing))
    if twice:
        findings.append(_twice(hardware.host, twice))
    return tuple(found[index] for index in sorted(found)), tuple(findings)


def _distances(hardware: Hardware, gpus: Sequence[Gpu], nodes: Sequence[int | None]) -> Distances:
    """By the topology; without one by NUMA nodes, as far as these are known."""
    links = placed_topology(hardware, gpus)
    if links is not None:
        return tuple(tuple(LINK_DISTANCE[link] for link in row) for row in links.links)

    def step(one: int, other: int) -> int:
        if one == other:
            return 0
        if nodes[one] is None or nodes[other] is None:
            return UNKNOWN_DISTANCE
        return LINK_DISTANCE["NODE" if nodes[one] == nodes[other] else "SYS"]

    positions = range(len(gpus))
    return tuple(tuple(step(one, other) for other in positions) for one in positions)


def _class_of(hardware: Hardware, distance: int) -> LinkClass | None:
    if not rows(hardware):
        return None
    names: dict[int, LinkClass] = {
        value: name for name, value in LINK_DISTANCE.items() if name != "X"
    }
    return names.get(distance)


def _bound(
    hardware: Hardware,
    settings: Settings,
    choice: EngineChoice,
    gpus: tuple[Gpu, ...],
    nodes: tuple[int | None, ...],
    link: LinkClass | None,
) -> Placement | Finding:
    """A finding where the node that the engine lies on cannot be bound to."""

    def placed(bound_by: Literal["unit", "vllm", "none"], why: str, cpus: str = "") -> Placement:
        return Placement(gpus, nodes, link, bound_by, why, cpus)

    if settings.engine.numa == "off":
        return placed("none", "not bound: engine.numa is off")
    if settings.engine.args.get("numa-bind") is True:
        # A CPU affinity from outside would make vLLM skip its own detection and not start
        # (vllm/utils/numa_utils.py of 0.32.0).
        return placed("vllm", "vLLM binds each worker to its GPU's node (numa-bind)")
    if len(hardware.numa) == 1:
        return placed("none", "nothing to bind: the host has one NUMA node")
    if None in nodes or not hardware.numa:
        return placed("none", "not bound: the GPUs' NUMA nodes are not known")
    if len(set(nodes)) > 1:
        return placed("none", "not bound: the engine spans NUMA nodes")
    node = node_cpus(hardware, int(nodes[0] or 0))
    if node is None:
        return _unusable(hardware, int(nodes[0] or 0))
    wanted = choice.offload_bytes * len(gpus)
    if node.memory_total_bytes is not None and wanted > 0.8 * node.memory_total_bytes:
        return _too_small(hardware.host, node, wanted)
    return placed(
        "unit", f"its unit binds it to CPUs {node.cpus} and memory of that node", node.cpus
    )


def _order_unknown(hardware: Hardware, layout: Layout, candidates: Sequence[Gpu]) -> list[Finding]:
    """Only where another order could have been better."""
    if rows(hardware) or layout.gpus == 1 or layout.tensor == len(candidates):
        return []
    known = hardware.topology.links if hardware.topology is not None else ()
    return [
        Finding(
            "placement.topology-unknown",
            "note",
            hardware.host,
            "GPUs",
            "how the GPUs are linked is not known, so the engine takes them by NUMA node and "
            "number; tensor parallel groups may not be on the nearest ones",
            "see what nvidia-smi topo -m says on the host",
            evidence=f"the topology has {len(known)} GPUs, {len(hardware.gpus)} are described"
            if known
            else "no topology",
            source="nvidia-smi topo -m",
        )
    ]


def _missing(hardware: Hardware, missing: Sequence[str]) -> Finding:
    there: list[Any] = [f"{gpu.index}: {gpu.uuid or 'no UUID'}" for gpu in hardware.gpus]
    return Finding(
        "placement.gpu-missing",
        "refuse",
        hardware.host,
        "engine.gpus",
        f"engine.gpus names GPUs that this host does not have: {', '.join(missing)}",
        "write numbers or UUIDs as nvidia-smi -L prints them on this host; UUIDs belong into its "
        "host_vars, for they differ on every host",
        evidence="; ".join(there),
        source="nvidia-smi -L",
    )


def _twice(host: str, twice: Sequence[str]) -> Finding:
    return Finding(
        "placement.gpu-twice",
        "refuse",
        host,
        "engine.gpus",
        "engine.gpus names the same GPU twice, by number and by UUID",
        "name each GPU once",
        evidence="; ".join(twice),
        source="nvidia-smi -L",
    )


def _unusable(hardware: Hardware, node: int) -> Finding:
    listed = next((one for one in hardware.numa if one.node == node), None)
    seen = "it is not listed"
    if listed is not None:
        seen = f"CPUs {listed.cpus or 'none'}, {listed.memory_total_bytes} bytes of memory"
    return Finding(
        "placement.node-unusable",
        "warn",
        hardware.host,
        f"NUMA node {node}",
        f"not bound: NUMA node {node}, which the engine's GPUs lie on, has no CPUs or no memory of "
        "its own",
        "populate that socket's memory slots, or set engine.numa: off so that this is not said",
        evidence=seen,
        source="lscpu; /sys/devices/system/node",
    )


def _too_small(host: str, node: NumaNode, wanted: int) -> Finding:
    return Finding(
        "placement.node-too-small",
        "warn",
        host,
        f"NUMA node {node.node}",
        f"not bound: cpu-offload-gb wants {wanted / GIB:.0f} GiB of memory, and NUMA node "
        f"{node.node} alone has {(node.memory_total_bytes or 0) / GIB:.0f} GiB",
        "lower engine.args.cpu-offload-gb, or set engine.numa: off so that this is not said",
        evidence=f"cpu-offload-gb on all GPUs: {wanted} bytes; node: {node.memory_total_bytes}",
        source="set_mempolicy(2): a strict policy ends in the OOM killer",
    )
