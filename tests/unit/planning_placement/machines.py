"""Hosts by the picture of their topology, and engines to put there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pyinfra_deploy.facts.hardware import Gpu, Hardware, NumaNode, Topology
from pyinfra_deploy.settings.schema import Engine, GpuHost, Runtime, Settings

if TYPE_CHECKING:
    from pyinfra_deploy.facts.hardware import LinkClass

GIB = 2**30
CPUS = {0: "0-31,64-95", 1: "32-63,96-127"}
TWO_NODES = (NumaNode(0, CPUS[0], 512 * GIB), NumaNode(1, CPUS[1], 512 * GIB))
ONE_NODE = (NumaNode(0, "0-127", 1024 * GIB),)
# 8 L20: pairs below one switch, two of them on each socket.
L20_LINKS = """
X    PIX  NODE NODE SYS  SYS  SYS  SYS
PIX  X    NODE NODE SYS  SYS  SYS  SYS
NODE NODE X    PIX  SYS  SYS  SYS  SYS
NODE NODE PIX  X    SYS  SYS  SYS  SYS
SYS  SYS  SYS  SYS  X    PIX  NODE NODE
SYS  SYS  SYS  SYS  PIX  X    NODE NODE
SYS  SYS  SYS  SYS  NODE NODE X    PIX
SYS  SYS  SYS  SYS  NODE NODE PIX  X
"""


def links_of(picture: str) -> tuple[tuple[LinkClass, ...], ...]:
    rows = [line.split() for line in picture.strip().splitlines()]
    assert all(rows[a][b] == rows[b][a] for a in range(len(rows)) for b in range(len(rows)))
    return cast("tuple[tuple[LinkClass, ...], ...]", tuple(tuple(row) for row in rows))


def picture(classes: dict[tuple[int, int], str], count: int, rest: str = "SYS") -> str:
    """The matrix of `count` GPUs with these links between pairs, `rest` between all others."""
    known = {frozenset(pair): name for pair, name in classes.items()}
    return "\n".join(
        " ".join(
            "X" if one == other else known.get(frozenset((one, other)), rest)
            for other in range(count)
        )
        for one in range(count)
    )


def uuid(index: int) -> str:
    return f"GPU-{index:08x}-1111-2222-3333-444444444444"


def gpu(index: int, node: int | None = None, **more: Any) -> Gpu:
    return Gpu(index, "NVIDIA L20", uuid(index), f"0000:{index + 16:02x}:00.0", 46068,
               compute_capability=(8, 9), numa_node=node, **more)  # fmt: skip


def machine(
    links: str | None = L20_LINKS,
    nodes: tuple[int | None, ...] = (0, 0, 0, 0, 1, 1, 1, 1),
    numa: tuple[NumaNode, ...] = TWO_NODES,
    topology_nodes: tuple[int | None, ...] | None = None,
    affinity: tuple[str | None, ...] = (),
    **more: Any,
) -> Hardware:
    """nodes: what /sys says of each GPU. topology_nodes: what topo -m says, the same if None."""
    gpus = tuple(gpu(index, node) for index, node in enumerate(nodes))
    topology = None
    if links is not None:
        said = nodes if topology_nodes is None else topology_nodes
        topology = Topology(links_of(links), (), said, affinity)
    return Hardware("gpu01", **{"gpus": gpus, "topology": topology, "numa": numa, **more})


def engine(
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    *,
    gpus: Any = "all",
    numa: Any = "auto",
    vllm: str = "0.33.0",
    device: Any = "cuda",
    env: dict[str, str] | None = None,
    **args: Any,
) -> Settings:
    """args: further engine.args, underscores for dashes."""
    sizes = {
        "tensor-parallel-size": tensor,
        "pipeline-parallel-size": pipeline,
        "data-parallel-size": data,
    }
    more = {name.replace("_", "-"): value for name, value in args.items()}
    return Settings(
        gpu_host=GpuHost(),
        runtime=Runtime(vllm=vllm, lock="locks/one.txt", device=device),
        engine=Engine(args=sizes | more, gpus=gpus, numa=numa, env=env or {}),
    )
