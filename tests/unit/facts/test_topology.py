"""`nvidia-smi topo -m`, also as people damage it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.topology import parse_topology

if TYPE_CHECKING:
    from pyinfra_deploy.facts.hardware import Topology

DIRECTORY = Path(__file__).parent / "fixtures" / "topo"


def topo(name: str) -> Topology:
    return parse_topology((DIRECTORY / f"{name}.txt").read_text())


def test_eight_gpus_with_ansi_codes_and_nics() -> None:
    found = topo("eight-ansi-nics")
    assert found.links[0] == ("X", "PIX", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS")
    assert found.links[7] == ("SYS", "SYS", "SYS", "SYS", "NODE", "NODE", "PIX", "X")
    assert found.numa_nodes == (0, 0, 0, 0, 1, 1, 1, 1)
    assert found.cpu_affinity[4] == "32-63,96-127"
    assert not any(count for row in found.nvlink_counts for count in row)


def test_a_single_gpu_without_a_node() -> None:
    found = topo("single-no-node")
    assert (found.links, found.numa_nodes, found.cpu_affinity) == ((("X",),), (None,), ("0-15",))


def test_nvlinks_are_counted_and_old_names_of_nics_skipped() -> None:
    found = topo("four-nvlink-old-nic-names")
    assert found.links[2] == ("SYS", "SYS", "X", "NV")
    assert found.nvlink_counts[2] == (0, 0, 0, 12)
    assert found.numa_nodes == (0, 0, 1, 1)


def test_empty_cells_and_several_nodes() -> None:
    found = topo("empty-affinity")
    assert (found.cpu_affinity, found.numa_nodes) == (("0", None), (0, 1))
    assert topo("several-nodes").numa_nodes == (None, None)
    assert topo("old-driver-padding").cpu_affinity == ("0-31", "0-31")
    assert topo("old-driver-padding").numa_nodes == (None, None)


def test_sixteen_gpus() -> None:
    found = topo("sixteen")
    assert len(found.links) == 16
    assert found.links[3][12] == "SYS"
    assert found.links[12][15] == "PXB"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bad-sixteen-row-missing", "row of GPU6 is missing among 15"),
        ("bad-sixteen-empty-cells", "link from GPU3 to GPU9 is empty"),
        ("bad-spaces", "tabs have become spaces"),
        ("bad-first-cell", "lost its first, empty cell"),
        ("bad-asymmetric", "GPU1 to GPU0 is SYS, but back it is PIX"),
        ("bad-class", "says 'QPI', which is no link class"),
        ("bad-run-together", "run together"),
        ("bad-p2p", "no column CPU Affinity"),
    ],
)
def test_damaged_ones_are_refused_in_words(name: str, said: str) -> None:
    with pytest.raises(UnreadableOutput, match=said):
        topo(name)


def test_a_file_that_is_cut_within_its_matrix_is_never_read() -> None:
    text = (DIRECTORY / "eight-ansi-nics.txt").read_text()
    whole = parse_topology(text)
    matrix_ends = text.index("NIC0\t", text.index("GPU7\t X") if "GPU7\t X" in text else 200)
    for length in range(0, matrix_ends - 1, 7):
        with pytest.raises(UnreadableOutput):
            parse_topology(text[:length])
    assert parse_topology(text[:matrix_ends]) == whole
