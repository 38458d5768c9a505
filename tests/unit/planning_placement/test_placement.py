"""Where an engine goes on a host and what binds it there: the right answers, and broken data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy.facts.hardware import Hardware, NumaNode
from pyinfra_deploy.planning.placement import Placement, drop_in, environment_of, place
from tests.unit.planning_placement.machines import (
    CPUS,
    GIB,
    ONE_NODE,
    TWO_NODES,
    engine,
    gpu,
    machine,
    picture,
    uuid,
)

if TYPE_CHECKING:
    from pyinfra_deploy.settings.schema import Settings


def placed(hardware: Hardware, settings: Settings) -> Placement:
    placement, findings = place(hardware, settings)
    assert placement is not None, findings
    return placement


def said(hardware: Hardware, settings: Settings) -> list[str]:
    return [f"{one.severity} {one.id}" for one in place(hardware, settings)[1]]


@pytest.mark.parametrize(
    ("hardware", "settings", "gpus", "bound_by", "why"),
    [
        pytest.param(machine(), engine(4), [0, 1, 2, 3], "unit", CPUS[0], id="one node of two"),
        pytest.param(machine(), engine(8), list(range(8)), "none", "spans", id="both nodes"),
        pytest.param(
            machine(), engine(8, numa_bind=True), list(range(8)), "vllm", "numa-bind", id="by vLLM"
        ),
        # A CPU affinity from outside makes vLLM skip its own detection, and not start.
        pytest.param(
            machine(), engine(2, numa_bind=True), [0, 1], "vllm", "numa-bind", id="vLLM, one node"
        ),
        pytest.param(machine(), engine(4, numa="off"), [0, 1, 2, 3], "none", "off", id="off"),
        pytest.param(
            machine(), engine(4, gpus=[4, 5, 6, 7]), [4, 5, 6, 7], "unit", CPUS[1], id="chosen"
        ),
        pytest.param(
            machine(), engine(2, gpus=[1, 6, 7]), [6, 7], "unit", CPUS[1], id="nearest of chosen"
        ),
        pytest.param(
            machine(), engine(2, gpus=[uuid(3), uuid(2)]), [2, 3], "unit", CPUS[0], id="by UUID"
        ),
        pytest.param(
            machine(), engine(4, gpus=[0, 1, 4, 5]), [0, 1, 4, 5], "none", "spans", id="apart"
        ),
        pytest.param(
            machine(nodes=(None,) * 8, numa=ONE_NODE), engine(8), list(range(8)), "none",
            "one NUMA node", id="single node, nodes not told",
        ),
        pytest.param(
            machine(picture({}, 8, "NV")), engine(4), [0, 1, 2, 3], "unit", CPUS[0], id="NVSwitch"
        ),
        pytest.param(
            machine("X", (1,)), engine(1), [0], "unit", CPUS[1], id="one GPU on the far node"
        ),
        pytest.param(
            machine(None), engine(4), [0, 1, 2, 3], "unit", CPUS[0], id="no topology, /sys alone"
        ),
    ],
)  # fmt: skip
def test_place(
    hardware: Hardware, settings: Settings, gpus: list[int], bound_by: str, why: str
) -> None:
    placement = placed(hardware, settings)
    assert [one.index for one in placement.gpus] == gpus
    assert placement.bound_by == bound_by
    assert why in placement.why
    assert (placement.cpus != "") == (bound_by == "unit")
    assert not [one for one in place(hardware, settings)[1] if one.severity != "note"]


SIXTEEN = picture({}, 16, "PHB")
HOLES = tuple(gpu(index, 0) for index in range(16) if index not in (3, 9))


@pytest.mark.parametrize(
    ("hardware", "settings", "findings", "bound_by"),
    [
        pytest.param(
            machine(nodes=(None,) * 8), engine(4), ["warn placement.numa-unknown"], "none",
            id="no node known",
        ),
        pytest.param(
            machine(nodes=(0, 0, None, 0, 1, 1, 1, 1)), engine(4, gpus=[4, 5, 6, 7]), [], "unit",
            id="unknown of a GPU that is not used",
        ),
        pytest.param(
            machine(topology_nodes=(0, 1, 0, 0, 1, 1, 1, 1)), engine(4, gpus=[0, 1, 2, 3]),
            ["warn placement.numa-contradiction"], "none", id="/sys against topo",
        ),
        pytest.param(
            machine(nodes=(3,) * 8), engine(4), ["warn placement.numa-contradiction"], "none",
            id="a node that is not there",
        ),
        pytest.param(
            machine(affinity=(CPUS[1],) * 8), engine(4, gpus=[0, 1, 2, 3]),
            ["warn placement.numa-contradiction"], "none", id="CPUs of the other node",
        ),
        pytest.param(
            machine(affinity=(CPUS[1],) * 8), engine(4, gpus=[0, 1, 2, 3], numa="off"), [], "none",
            id="nothing to say when off",
        ),
        pytest.param(
            machine(numa=(NumaNode(0, "", 512 * GIB), TWO_NODES[1])), engine(4),
            ["warn placement.node-unusable"], "none", id="node without CPUs",
        ),
        pytest.param(
            machine(numa=(NumaNode(0, CPUS[0], 0), TWO_NODES[1])), engine(4),
            ["warn placement.node-unusable"], "none", id="node without memory",
        ),
        pytest.param(machine(numa=()), engine(4), [], "none", id="nodes not read"),
        pytest.param(
            machine(), engine(4, cpu_offload_gb=120), ["warn placement.node-too-small"], "none",
            id="offload larger than the node",
        ),
        pytest.param(machine(), engine(4, cpu_offload_gb=20), [], "unit", id="offload that fits"),
        pytest.param(
            machine(picture({}, 4), topology_nodes=(0, 0, 0, 0)), engine(4),
            ["note placement.topology-unknown"], "unit", id="topology smaller than the GPUs",
        ),
        pytest.param(
            machine(None, (0, 1, 0, 1)), engine(2), ["note placement.topology-unknown"], "unit",
            id="no topology",
        ),
        pytest.param(
            machine(SIXTEEN, (0,) * 16, ONE_NODE, gpus=HOLES), engine(4), [], "none",
            id="16 GPUs with holes",
        ),
        pytest.param(
            machine(nodes=(0,) * 8), engine(8, numa_bind=True, numa_bind_nodes=[0] * 8), [], "vllm",
            id="one node asked, and they lie there",
        ),
        pytest.param(
            machine(), engine(8, numa_bind=True, numa_bind_nodes=[0] * 8),
            ["refuse placement.one-node-memory"], "vllm", id="single membind",
        ),
        pytest.param(
            machine(), engine(8, numa_bind=True, numa_bind_nodes=0),
            ["refuse placement.one-node-memory"], "vllm", id="single membind as a number",
        ),
        pytest.param(
            machine(), engine(8, env={"WRAPPER": "numactl --membind=0 --cpunodebind=0"}),
            ["refuse placement.one-node-memory"], "none", id="single membind in the environment",
        ),
        pytest.param(
            machine(), engine(8, env={"WRAPPER": "numactl --membind=0,1", "A": "x-m3"}), [],
            "none", id="all nodes in the environment",
        ),
        pytest.param(
            machine(), engine(4, env={"WRAPPER": "numactl --membind=0"}), [], "unit",
            id="its own node in the environment",
        ),
        pytest.param(
            machine(), engine(8, numa_bind=True, numa_bind_nodes=[0, 0, 1, 1]),
            ["refuse placement.numa-bind-nodes"], "vllm", id="too few nodes",
        ),
        pytest.param(
            machine(), engine(8, numa_bind=True, numa_bind_nodes="1 1 1 1 0 0 0 0"),
            ["warn placement.numa-bind-nodes"], "vllm", id="nodes the wrong way round",
        ),
        pytest.param(
            machine(), engine(8, numa_bind=True, numa_bind_nodes=[0, 0, 0, 0, 1, 1, 1, 1]), [],
            "vllm", id="nodes as they are",
        ),
        pytest.param(
            machine(numa=ONE_NODE, nodes=(0,) * 8), engine(8, numa_bind=True),
            ["refuse placement.numa-bind-undetected"], "vllm", id="numa-bind without a second node",
        ),
    ],
)  # fmt: skip
def test_what_is_said(
    hardware: Hardware, settings: Settings, findings: list[str], bound_by: str
) -> None:
    assert said(hardware, settings) == findings
    assert placed(hardware, settings).bound_by == bound_by


@pytest.mark.parametrize(
    ("hardware", "settings", "findings"),
    [
        (machine(), engine(2, gpus=[0, 9]), ["refuse placement.gpu-missing"]),
        (machine(), engine(2, gpus=[0, uuid(77)]), ["refuse placement.gpu-missing"]),
        (machine(), engine(2, gpus=[0, uuid(0)]), ["refuse placement.gpu-twice"]),
        # Other findings say what is wrong with these.
        (machine(), engine(16), []),
        (Hardware("gpu01"), engine(2), []),
        (Hardware("gpu01"), engine(2, gpus=[0, 1]), []),
        (machine(gpus=(gpu(0, 0, mig_enabled=True), gpu(1, 0))), engine(2), []),
    ],
)
def test_no_place(hardware: Hardware, settings: Settings, findings: list[str]) -> None:
    assert place(hardware, settings)[0] is None
    assert said(hardware, settings) == findings


def test_findings_carry_what_was_read_and_what_to_do() -> None:
    for hardware, settings, evidence, fix in (
        (machine(nodes=(None,) * 8), engine(4), "GPU 0: 0000:10:00.0", "numa_node"),
        (machine(nodes=(3,) * 8), engine(4), "node 3, and the host has 0, 1", "lscpu"),
        (machine(topology_nodes=(1,) * 8), engine(4, gpus=[0, 1, 2, 3]), "topo -m says node 1", ""),
        (machine(), engine(2, gpus=[0, 9]), f"0: {uuid(0)}", "nvidia-smi -L"),
        (machine(), engine(8, numa_bind=True, numa_bind_nodes=[1]), "[1]", "numa-bind: true"),
    ):  # fmt: skip
        (finding,) = place(hardware, settings)[1]
        assert finding.host == "gpu01"
        assert evidence in finding.evidence
        assert fix in finding.fix
        assert finding.source


def test_words() -> None:
    assert str(placed(machine(), engine(4))) == (
        "GPUs 0-3 on NUMA node 0, NODE at most within a tensor parallel group; its unit binds it "
        "to CPUs 0-31,64-95 and memory of that node"
    )
    turns = machine(picture({(0, 2): "PIX", (1, 3): "PIX"}, 4), (0, 1, 0, 1))
    assert str(placed(turns, engine(2, 1, 2))) == (
        "GPUs 0-3 in the order 0, 2, 1, 3 on NUMA nodes 0 and 1, PIX at most within a tensor "
        "parallel group; not bound: the engine spans NUMA nodes"
    )
    assert str(placed(machine(None, (None,), ONE_NODE), engine(1))) == (
        "GPU 0 on NUMA node 0; nothing to bind: the host has one NUMA node"
    )


@pytest.mark.parametrize(
    ("vllm", "devices"),
    [
        ("0.33.0", f"{uuid(4)},{uuid(5)}"),
        ("0.28.0", f"{uuid(4)},{uuid(5)}"),
        # Versions that take each entry for a number, or of which nobody has looked.
        ("0.27.0", "4,5"),
        ("0.10.1.1", "4,5"),
    ],
)
def test_the_environment_names_the_gpus(vllm: str, devices: str) -> None:
    environment = environment_of(placed(machine(), engine(2, gpus=[4, 5])), vllm)
    assert environment["CUDA_VISIBLE_DEVICES"] == devices
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_gpu_without_uuid_is_named_by_its_number() -> None:
    bare = replace(machine(), gpus=tuple(replace(one, uuid=None) for one in machine().gpus))
    assert environment_of(placed(bare, engine(2)), "0.33.0")["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_the_drop_in_binds_and_the_environment_tells_of_every_change() -> None:
    near, far = (placed(machine(), engine(4, gpus=g)) for g in ([0, 1, 2, 3], [4, 5, 6, 7]))
    file = drop_in("main", near)
    assert file is not None
    assert file.path == "/etc/systemd/system/llm-engine@main.service.d/placement.conf"
    lines = [line for line in file.content.splitlines() if not line.startswith("#")]
    assert lines == ["[Service]", "CPUAffinity=0-31,64-95", "NUMAPolicy=bind", "NUMAMask=0"]
    digests = {environment_of(one, "0.33.0")["FLEET_PLACEMENT"] for one in (near, far)}
    other = machine(numa=(NumaNode(0, "0-15", 512 * GIB), TWO_NODES[1]))
    digests.add(environment_of(placed(other, engine(4)), "0.33.0")["FLEET_PLACEMENT"])
    assert len(digests) == 3
    for unbound in (placed(machine(), engine(8)), placed(machine(), engine(4, numa="off")), None):
        assert drop_in("main", unbound) is None
        assert "FLEET_PLACEMENT" not in environment_of(unbound, "0.33.0")
    assert environment_of(None, "0.33.0") == {}


def test_the_engine_takes_its_own_gpus_first_come_or_not() -> None:
    """The order in which nvidia-smi or the settings list GPUs decides nothing."""
    hardware = machine()
    backwards = replace(hardware, gpus=tuple(reversed(hardware.gpus)))
    assert placed(backwards, engine(4)) == placed(hardware, engine(4))
    listed = engine(4, gpus=[7, 5, 6, 4])
    assert placed(hardware, listed) == placed(hardware, engine(4, gpus=[4, 5, 6, 7]))
