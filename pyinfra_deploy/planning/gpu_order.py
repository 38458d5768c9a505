"""In which order an engine takes the GPUs of a host, so that those that talk most are near.

vLLM numbers its ranks data x pipeline x tensor and gives them the visible GPUs in order, so a
tensor parallel group is `tensor` neighbours in that order, and a pipeline `pipeline` such groups.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyinfra_deploy.facts.hardware import LinkClass
    from pyinfra_deploy.planning.layout import Layout

# From the nearest to the farthest: NVLink, one PCIe switch, several, the host bridge, another
# bridge of the node, the link between sockets (nvidia-smi topo -m).
LINK_DISTANCE: dict[LinkClass, int] = {
    "X": 0,
    "NV": 0,
    "PIX": 1,
    "PXB": 2,
    "PHB": 3,
    "NODE": 4,
    "SYS": 5,
}
UNKNOWN_DISTANCE = 6

# distances[a][b] of the GPUs at positions a and b, symmetric.
Distances = tuple[tuple[int, ...], ...]


def arranged(distances: Distances, nodes: Sequence[int | None], layout: Layout) -> tuple[int, ...]:
    """Positions of the GPUs to use, in the order of ranks. There have to be enough of them.

    nodes: the NUMA node of each position. First come short steps inside tensor parallel groups,
    then few NUMA nodes, then short steps between the stages of a pipeline, then low positions.
    """
    sets = [tuple(range(len(distances)))]
    for node in sorted({node for node in nodes if node is not None}):
        of_node = tuple(at for at, own in enumerate(nodes) if own == node)
        if layout.gpus <= len(of_node) < len(distances):
            sets.append(of_node)
    orders = [_arranged(distances, members, layout) for members in sets]
    return min(orders, key=lambda order: _cost(distances, nodes, order, layout))


def widest_tensor_step(distances: Distances, order: Sequence[int], layout: Layout) -> int:
    """The longest step inside one tensor parallel group; 0 where each is one GPU."""
    groups = (order[at : at + layout.tensor] for at in range(0, len(order), layout.tensor))
    return max((_widest(distances, group) for group in groups), default=0)


def _cost(
    distances: Distances, nodes: Sequence[int | None], order: tuple[int, ...], layout: Layout
) -> tuple[object, ...]:
    size = layout.tensor * layout.pipeline
    copies = (order[at : at + size] for at in range(0, len(order), size))
    return (
        widest_tensor_step(distances, order, layout),
        len({nodes[at] for at in order}),
        max(_widest(distances, copy) for copy in copies),
        order,
    )


def _arranged(distances: Distances, members: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    groups = _grouped(distances, members, layout.tensor, layout.pipeline * layout.data)
    between = tuple(
        tuple(max(distances[a][b] for a in one for b in other) for other in groups)
        for one in groups
    )
    copies = _grouped(between, tuple(range(len(groups))), layout.pipeline, layout.data)
    return tuple(at for copy in copies for group in copy for at in groups[group])


def _grouped(
    distances: Distances, members: tuple[int, ...], size: int, count: int
) -> tuple[tuple[int, ...], ...]:
    """`count` groups of `size` members whose longest inner step is as short as can be."""
    if size == len(members):
        return (members,)
    limits = sorted({distances[a][b] for a, b in combinations(members, 2)}) if size > 1 else [0]
    for limit in limits:
        parts = _connected(distances, members, limit)
        if size == 1 or sum(len(part) // size for part in parts) >= count:
            found = _within(distances, members, size, count, limit)
            if found is not None:
                return found
    raise ValueError(f"{len(members)} GPUs do not make {count} groups of {size}")


def _within(
    distances: Distances, free: tuple[int, ...], size: int, count: int, limit: int
) -> tuple[tuple[int, ...], ...] | None:
    """The groups, the nearest members first, with no step above the limit; None when there are
    none such. The check of _grouped leaves little to try: link classes nest, but for NVLink."""
    if count == 0:
        return ()
    if len(free) < size * count:
        return None
    first, rest = free[0], free[1:]
    near = sorted(
        (other for other in rest if distances[first][other] <= limit),
        key=lambda other: (distances[first][other], other),
    )
    for others in combinations(near, size - 1):
        if size > 1 and _widest(distances, others) > limit:
            continue
        group = tuple(sorted((first, *others)))
        left = tuple(one for one in free if one not in group)
        more = _within(distances, left, size, count - 1, limit)
        if more is not None:
            return (group, *more)
    return _within(distances, rest, size, count, limit)


def _connected(distances: Distances, members: Iterable[int], limit: int) -> list[set[int]]:
    parts: list[set[int]] = []
    for member in members:
        near = [part for part in parts if any(distances[member][one] <= limit for one in part)]
        parts = [part for part in parts if part not in near]
        parts.append({member}.union(*near))
    return parts


def _widest(distances: Distances, group: Sequence[int]) -> int:
    return max((distances[a][b] for a, b in combinations(group, 2)), default=0)
