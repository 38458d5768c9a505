"""Several engines on one host, each on the GPUs, CPUs and memory of one NUMA node: what an engine
that spans nodes is to be compared with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pyinfra_deploy.facts.hardware import Gpu
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.gpu_table import index_ranges
from pyinfra_deploy.planning.parallelism import all_layouts
from pyinfra_deploy.planning.placement import (
    Placement,
    environment_of,
    node_cpus,
    node_directives,
    placed_topology,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from pyinfra_deploy.facts.hardware import Hardware, Topology
    from pyinfra_deploy.planning.layout import Layout
    from pyinfra_deploy.planning.model_shape import ModelShape


@dataclass(frozen=True)
class NodeEngine:
    """One engine of several. cpus: of its node, a Linux list. environment, directives, socket: what
    its unit would say; the engines listen on sockets, so they need no ports."""

    node: int
    gpus: tuple[Gpu, ...]
    cpus: str
    layout: Layout
    environment: tuple[tuple[str, str], ...] = ()
    directives: tuple[tuple[str, str], ...] = ()
    socket: str = ""

    @property
    def unit(self) -> tuple[str, ...]:
        """The lines of its unit's [Service] that bind it, and where it listens."""
        return (
            *(f"{name}={value}" for name, value in self.directives),
            *(f"Environment={name}={value}" for name, value in self.environment),
            f"vllm serve --uds {self.socket}",
        )

    def __str__(self) -> str:
        noun = "GPU" if len(self.gpus) == 1 else "GPUs"
        return (
            f"{self.layout} on {noun} {index_ranges([gpu.index for gpu in self.gpus])} "
            f"(NUMA node {self.node}, CPUs {self.cpus})"
        )


def node_engines(
    hardware: Hardware,
    placement: Placement,
    shape: ModelShape,
    args: Mapping[str, Any],
    vllm_version: str | None,
    engine: str = "main",
) -> tuple[NodeEngine, ...]:
    """An engine per node, where the present one spans nodes and the model fits, in any case, on the
    GPUs that it has of each. Empty otherwise. engine: the name of the present one."""
    nodes = sorted({node for node in placement.nodes if node is not None})
    if None in placement.nodes or len(nodes) < 2:
        return ()
    engines = []
    for node in nodes:
        place = node_cpus(hardware, node)
        gpus = tuple(
            gpu for gpu, own in zip(placement.gpus, placement.nodes, strict=True) if own == node
        )
        layout = _layout(shape, gpus, args, vllm_version, hardware) if place else None
        if place is None or layout is None:
            return ()
        used = gpus[: layout.gpus]
        own = Placement(used, (node,) * len(used), None, "none", "", place.cpus)
        engines.append(
            NodeEngine(
                node,
                used,
                place.cpus,
                layout,
                tuple(environment_of(own, vllm_version).items()),
                tuple(node_directives(node, place.cpus)),
                f"/run/llm-engine-{engine}-node{node}/http.sock",
            )
        )
    return tuple(engines)


def _layout(
    shape: ModelShape,
    gpus: Sequence[Gpu],
    args: Mapping[str, Any],
    vllm_version: str | None,
    hardware: Hardware,
) -> Layout | None:
    """The best layout of one copy of the model that fits in any case."""
    # Without what differs between equal cards, so that a fleet of equal hosts is computed once.
    alike = tuple(
        Gpu(at, gpu.name, memory_total_mib=gpu.memory_total_mib,
            memory_reserved_mib=gpu.memory_reserved_mib, compute_capability=gpu.compute_capability)
        for at, gpu in enumerate(gpus)
    )  # fmt: skip
    text = json.dumps(dict(args), sort_keys=True, default=str)
    return _layout_of_equals(shape, alike, text, vllm_version, placed_topology(hardware, gpus))


@lru_cache(maxsize=256)
def _layout_of_equals(
    shape: ModelShape,
    gpus: tuple[Gpu, ...],
    args: str,
    vllm_version: str | None,
    topology: Topology | None,
) -> Layout | None:
    for verdict in all_layouts(shape, gpus, json.loads(args), vllm_version, topology):
        if verdict.legal and verdict.fits == 0 and verdict.layout.data == 1:
            return verdict.layout
    return None


def node_engines_finding(host: str, engines: Sequence[NodeEngine], layout: Layout) -> Finding:
    return Finding(
        "placement.one-engine-per-node",
        "note",
        host,
        str(layout),
        f"the model also fits on the GPUs of one NUMA node: {len(engines)} engines instead of one "
        "over all would exchange nothing between the sockets, and each could be bound to its node",
        "fleet plan --layouts prints what the unit of each would say: measure both. The deploy "
        "runs one engine on a host, so the others would be units of your own",
        evidence="; ".join(map(str, engines)),
        source="nvidia-smi topo -m; systemd.exec(5): CPUAffinity, NUMAPolicy, NUMAMask",
    )
