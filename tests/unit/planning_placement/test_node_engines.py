"""Several engines per host are proposed where a model fits on the GPUs of each NUMA node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy import plan_report
from pyinfra_deploy.facts.hardware import NumaNode
from pyinfra_deploy.planning.node_engines import node_engines, node_engines_finding
from pyinfra_deploy.planning.placement import place
from tests.unit.planning_model import shapes
from tests.unit.planning_placement.machines import CPUS, TWO_NODES, engine, machine

if TYPE_CHECKING:
    from pyinfra_deploy.facts.hardware import Hardware
    from pyinfra_deploy.planning.node_engines import NodeEngine
    from pyinfra_deploy.settings.schema import Settings


def proposed(model: dict[str, Any], hardware: Hardware, settings: Settings) -> list[NodeEngine]:
    placement, _ = place(hardware, settings)
    assert placement is not None
    return list(
        node_engines(hardware, placement, shapes.shape(model), settings.engine.args, "0.33.0")
    )


def test_a_model_that_fits_on_each_node() -> None:
    engines = proposed(shapes.QWEN3_32B, machine(), engine(8, max_model_len=16384))
    assert [[gpu.index for gpu in one.gpus] for one in engines] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [(one.node, one.cpus) for one in engines] == [(0, CPUS[0]), (1, CPUS[1])]
    assert {str(one.layout) for one in engines} == {"TP4"}
    finding = node_engines_finding("gpu01", engines, engines[0].layout)
    assert (finding.id, finding.severity) == ("placement.one-engine-per-node", "note")
    assert f"TP4 on GPUs 4-7 (NUMA node 1, CPUs {CPUS[1]})" in finding.evidence
    text = plan_report.layouts_text([], engines)
    assert "2 engines" in text
    assert f"TP4 on GPUs 0-3 (NUMA node 0, CPUs {CPUS[0]})" in text
    # And what the unit of each would say, since the deploy makes one of them only.
    flat = " ".join(text.split())
    for one in engines:
        uuids = ",".join(str(gpu.uuid) for gpu in one.gpus)
        assert (
            f"CPUAffinity={one.cpus}; NUMAPolicy=bind; NUMAMask={one.node}; "
            f"Environment=CUDA_DEVICE_ORDER=PCI_BUS_ID; Environment=CUDA_VISIBLE_DEVICES={uuids}; "
            f"vllm serve --uds /run/llm-engine-main-node{one.node}/http.sock"
        ) in flat
    assert "runs one engine on a host" in flat
    assert "units of your own" in finding.fix


@pytest.mark.parametrize(
    ("model", "hardware", "settings"),
    [
        pytest.param(shapes.QWEN3_235B_FP8, machine(), engine(8), id="too large for one node"),
        pytest.param(shapes.QWEN3_32B, machine(), engine(4), id="on one node already"),
        pytest.param(
            shapes.QWEN3_32B, machine(nodes=(None,) * 8), engine(8), id="nodes unknown"
        ),
        pytest.param(
            shapes.QWEN3_32B, machine(numa=(TWO_NODES[0], NumaNode(1, CPUS[1], 0))), engine(8),
            id="a node without memory",
        ),
        pytest.param(
            shapes.QWEN3_32B, machine(nodes=(0, 0, 0, 0, 0, 0, 0, 1)), engine(8),
            id="too few GPUs on one node",
        ),
    ],
)  # fmt: skip
def test_none_otherwise(model: dict[str, Any], hardware: Hardware, settings: Settings) -> None:
    assert proposed(model, hardware, settings) == []
