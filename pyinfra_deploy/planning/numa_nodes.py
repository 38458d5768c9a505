"""Which NUMA node each GPU of an engine lies on, where all that was read of it agrees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.gpu_table import named, of_each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyinfra_deploy.facts.hardware import Gpu, Hardware, NumaNode, Topology

_SYS = "/sys/bus/pci/devices/*/numa_node; nvidia-smi topo -m"


def rows(hardware: Hardware) -> dict[int, int]:
    """A GPU's index -> its row of the topology. Empty where the two do not count the same GPUs."""
    indices = sorted(gpu.index for gpu in hardware.gpus)
    links = hardware.topology.links if hardware.topology is not None else ()
    if not indices or len(set(indices)) < len(indices) or indices[-1] + 1 != len(links):
        return {}
    if any(len(row) != len(links) for row in links):
        return {}
    return {index: index for index in indices}


def nodes_of(
    hardware: Hardware, gpus: Sequence[Gpu]
) -> tuple[tuple[int | None, ...], tuple[Finding, ...]]:
    """(the node of each GPU, None where it is unknown or contradicted; what is to be said)."""
    known = {node.node: node for node in hardware.numa}
    row = rows(hardware)
    found: list[int | None] = []
    wrong: list[tuple[Gpu, str]] = []
    for gpu in gpus:
        node, against = _node(gpu, row.get(gpu.index), hardware.topology, known)
        found.append(node)
        wrong += [(gpu, against)] if against else []
    findings = [_contradiction(hardware.host, wrong)] if wrong else []
    contradicted = {gpu.index for gpu, _ in wrong}
    missing = [
        gpu
        for gpu, node in zip(gpus, found, strict=True)
        if node is None and gpu.index not in contradicted
    ]
    if missing and len(known) > 1:
        findings.append(_unknown(hardware.host, missing))
    return tuple(found), tuple(findings)


def _node(
    gpu: Gpu, row: int | None, topology: Topology | None, known: dict[int, NumaNode]
) -> tuple[int | None, str]:
    """(node, what contradicts it)."""
    said = {"/sys": gpu.numa_node}
    cpus = None
    if row is not None and topology is not None:
        said["topo -m"] = topology.numa_nodes[row] if row < len(topology.numa_nodes) else None
        cpus = topology.cpu_affinity[row] if row < len(topology.cpu_affinity) else None
    values = {node for node in said.values() if node is not None}
    if len(values) > 1:
        return None, ", ".join(f"{where} says node {node}" for where, node in said.items())
    if not values:
        # All of a host with one node lies there, also where the firmware tells nothing (-1).
        return (next(iter(known)) if len(known) == 1 else None), ""
    node = values.pop()
    if not known:
        return node, ""
    if node not in known:
        return None, f"node {node}, and the host has {', '.join(map(str, sorted(known)))}"
    near, own = cpu_set(cpus or ""), cpu_set(known[node].cpus)
    if near and own and not near & own:
        return None, f"node {node} has CPUs {known[node].cpus}, topo -m says CPUs {cpus}"
    return node, ""


def cpu_set(text: str) -> set[int]:
    """The CPUs of a Linux list, "0-31,64-95"."""
    found: set[int] = set()
    for part in text.replace(" ", ",").split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            found.update(range(int(first), int(last or first) + 1))
    return found


def _contradiction(host: str, wrong: Sequence[tuple[Gpu, str]]) -> Finding:
    texts = {gpu.index: against for gpu, against in wrong}
    gpus = [gpu for gpu, _ in wrong]
    return Finding(
        "placement.numa-contradiction",
        "warn",
        host,
        named(gpus),
        "what the host says about the NUMA node of these GPUs does not agree, so the engine is not "
        "bound to a node",
        "compare nvidia-smi topo -m with cat /sys/bus/pci/devices/ADDRESS/numa_node and lscpu on "
        "the host; a BIOS update, or its setting for NUMA nodes per socket, is the usual cure",
        evidence=of_each(gpus, lambda gpu: texts[gpu.index]),
        source=_SYS,
    )


def _unknown(host: str, gpus: Sequence[Gpu]) -> Finding:
    return Finding(
        "placement.numa-unknown",
        "warn",
        host,
        named(gpus),
        "the host has several NUMA nodes and does not say on which of them these GPUs lie, so the "
        "engine is not bound to one",
        "look at cat /sys/bus/pci/devices/ADDRESS/numa_node on the host: -1 is a BIOS that does "
        "not tell (update it, or switch NUMA on in it); virtual machines often have none",
        evidence=of_each(list(gpus), lambda gpu: gpu.pci_address or "no PCI address")
        + ": no NUMA node in /sys and in topo -m",
        source=_SYS,
    )
