"""Tensor parallel groups on the nearest GPUs, whatever the numbering."""

from __future__ import annotations

import itertools
import random

import pytest

from pyinfra_deploy.planning.gpu_order import LINK_DISTANCE, arranged, widest_tensor_step
from pyinfra_deploy.planning.layout import Layout
from tests.unit.planning_placement.machines import L20_LINKS, links_of, picture

Pairs = dict[tuple[int, int], str]


def distances(links: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(LINK_DISTANCE[link] for link in row) for row in links_of(links))


def all_pairs(groups: list[tuple[int, ...]], name: str) -> Pairs:
    return {pair: name for group in groups for pair in itertools.combinations(group, 2)}


HALVES = (0, 0, 0, 0, 1, 1, 1, 1)
UNKNOWN = (None,) * 8
# The nodes' GPUs take turns, as on boards whose buses are numbered so.
TURNS = picture(all_pairs([(0, 2, 4, 6), (1, 3, 5, 7)], "NODE"), 8)
# Bridges between cards of two slots: NVLink within pairs, across nothing else.
BRIDGES = picture(
    all_pairs([(0, 1, 2, 3), (4, 5, 6, 7)], "NODE")
    | {(0, 2): "NV", (1, 3): "NV", (4, 6): "NV", (5, 7): "NV"},
    8,
)
# The two best links lie on different sockets.
APART = picture(all_pairs([(0, 1, 2, 3), (4, 5, 6, 7)], "NODE") | {(0, 1): "PIX", (4, 5): "PIX"}, 8)
# Nearest first would take (1, 2) and leave 0 and 3 to each other.
CHAIN = picture({(0, 1): "PIX", (1, 2): "NV", (2, 3): "PIX", (0, 3): "SYS"}, 4, "SYS")
SWITCH = picture({}, 8, "NV")
SIXTEEN = picture(all_pairs([tuple(range(9)), tuple(range(9, 16))], "NODE"), 16)


@pytest.mark.parametrize(
    ("links", "nodes", "layout", "order", "widest"),
    [
        pytest.param(L20_LINKS, HALVES, Layout(8), (0, 1, 2, 3, 4, 5, 6, 7), "SYS", id="all"),
        pytest.param(L20_LINKS, HALVES, Layout(4), (0, 1, 2, 3), "NODE", id="one node"),
        pytest.param(L20_LINKS, HALVES, Layout(2), (0, 1), "PIX", id="one switch"),
        pytest.param(L20_LINKS, HALVES, Layout(1), (0,), None, id="one GPU"),
        pytest.param(
            L20_LINKS, HALVES, Layout(4, 2), (0, 1, 2, 3, 4, 5, 6, 7), "NODE", id="stage per node"
        ),
        pytest.param(
            L20_LINKS, HALVES, Layout(2, 2), (0, 1, 2, 3), "PIX", id="pipeline inside a node"
        ),
        pytest.param(TURNS, (0, 1) * 4, Layout(4), (0, 2, 4, 6), "NODE", id="nodes in turns"),
        pytest.param(
            TURNS, (0, 1) * 4, Layout(4, 1, 2), (0, 2, 4, 6, 1, 3, 5, 7), "NODE", id="copies apart"
        ),
        pytest.param(
            TURNS, UNKNOWN, Layout(2, 2, 2), (0, 2, 4, 6, 1, 3, 5, 7), "NODE", id="nodes unknown"
        ),
        pytest.param(
            BRIDGES, HALVES, Layout(2, 1, 4), (0, 2, 1, 3, 4, 6, 5, 7), "NV", id="NVLink bridges"
        ),
        pytest.param(BRIDGES, HALVES, Layout(4), (0, 1, 2, 3), "NODE", id="two bridges"),
        pytest.param(APART, HALVES, Layout(2, 2), (0, 1, 4, 5), "PIX", id="best links apart"),
        pytest.param(CHAIN, (None,) * 4, Layout(2, 1, 2), (0, 1, 2, 3), "PIX", id="chain"),
        pytest.param(SWITCH, HALVES, Layout(2), (0, 1), None, id="NVSwitch"),
        pytest.param(SWITCH, HALVES, Layout(4, 1, 2), tuple(range(8)), None, id="NVSwitch, all"),
        pytest.param(
            SIXTEEN,
            (0,) * 9 + (1,) * 7,
            Layout(4, 1, 3),
            (0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12),
            "NODE",
            id="uneven sixteen",
        ),
    ],
)
def test_order(
    links: str, nodes: tuple[int | None, ...], layout: Layout, order: tuple[int, ...],
    widest: str | None,
) -> None:  # fmt: skip
    matrix = distances(links)
    assert arranged(matrix, nodes, layout) == order
    step = widest_tensor_step(matrix, order, layout)
    assert step == (LINK_DISTANCE[widest] if widest else 0)  # type: ignore[index]


def test_what_cannot_be_had_within_nodes_crosses_once_at_most() -> None:
    """Four groups of four of 9 + 7: three fit within nodes, so one has to cross, and is found."""
    layout = Layout(4, 1, 4)
    order = arranged(distances(SIXTEEN), (0,) * 9 + (1,) * 7, layout)
    assert sorted(order) == list(range(16))
    groups = [order[at : at + 4] for at in range(0, 16, 4)]
    assert sum(len({member < 9 for member in group}) == 2 for group in groups) >= 1


@pytest.mark.parametrize("seed", range(30))
def test_never_worse_than_any_other_choice(seed: int) -> None:
    """Against every grouping of six GPUs with arbitrary links, not only such as nest."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    names = ("NV", "PIX", "PHB", "NODE", "SYS")
    links: Pairs = {pair: chance.choice(names) for pair in itertools.combinations(range(6), 2)}
    matrix = distances(picture(links, 6))
    for layout in (Layout(2, 1, 3), Layout(3, 1, 2), Layout(2, 2), Layout(3), Layout(4)):
        got = arranged(matrix, (None,) * 6, layout)
        assert len(set(got)) == layout.gpus
        best = min(
            widest_tensor_step(matrix, order, layout)
            for order in itertools.permutations(range(6), layout.gpus)
        )
        assert widest_tensor_step(matrix, got, layout) == best
