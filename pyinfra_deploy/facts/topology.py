"""`nvidia-smi topo -m`: the link class between each two GPUs, and their NUMA nodes.

Cells are parted by tabs, the header is underlined by ANSI codes even where no terminal reads it,
columns for NICs stand among the others, and between "NUMA Affinity" and "GPU NUMA ID" rows have an
empty cell more than the header has names. A copy whose tabs became spaces can be read in more than
one way where cells are empty, so it is refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.hardware import LinkClass, Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU([0-9]{1,3})")
_NVLINK = re.compile(r"NV([0-9]{1,3})")
_CLASSES = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
_CPU_LIST = re.compile(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*")
_AGAIN = "save it again with `nvidia-smi topo -m > nvidia-smi-topo-m.txt`"


def parse_topology(text: str) -> Topology:
    """Raises UnreadableOutput, with words for a person, when anything in it is not certain."""
    lines = _ANSI.sub("", text.lstrip("\ufeff")).replace("\r", "").split("\n")
    at = _header(lines)
    if lines[-1].strip():
        raise UnreadableOutput(f"its last line has no end: it is cut short; {_AGAIN}")
    header = [cell.strip() for cell in lines[at].split("\t")]
    gpus = [name for name in header if _GPU.fullmatch(name)]
    _refuse_holes(gpus, "column")
    rows = _rows(lines[at + 1 :])
    _refuse_holes(list(rows), "row")
    if len(rows) != len(gpus):
        raise UnreadableOutput(
            f"there are {len(gpus)} columns and {len(rows)} rows of GPUs: it is cut short; {_AGAIN}"
        )
    first_tail = header.index("CPU Affinity")
    columns = [header.index(f"GPU{index}") for index in range(len(gpus))]
    matrix = [_links(rows[f"GPU{index}"], columns, index) for index in range(len(gpus))]
    _check_symmetry(matrix)
    tails = [
        _tail(header[first_tail:], rows[f"GPU{index}"][first_tail:], index)
        for index in range(len(gpus))
    ]
    return Topology(
        links=tuple(tuple(link for link, _ in row) for row in matrix),
        nvlink_counts=tuple(tuple(count for _, count in row) for row in matrix),
        numa_nodes=tuple(node for _, node in tails),
        cpu_affinity=tuple(cpus for cpus, _ in tails),
    )


def _header(lines: Sequence[str]) -> int:
    for at, line in enumerate(lines):
        if "GPU0" not in line:
            continue
        if "CPU Affinity" in line and "\t" in line:
            cells = [cell.strip() for cell in line.split("\t")]
            if cells[0]:
                raise UnreadableOutput(
                    f"the header has lost its first, empty cell: columns may be shifted; {_AGAIN}"
                )
            if "CPU Affinity" not in cells or not any(_GPU.fullmatch(cell) for cell in cells):
                raise UnreadableOutput(f"the header's cells have run together; {_AGAIN}")
            return at
        if "CPU Affinity" in line:
            raise UnreadableOutput(
                f"its tabs have become spaces, so empty cells cannot be told; {_AGAIN}"
            )
        if any(_GPU.fullmatch(cell.strip()) for cell in line.split("\t")):
            raise UnreadableOutput("it has no column CPU Affinity: not the output of `topo -m`")
    raise UnreadableOutput("it has no header that names GPU0")


def _rows(lines: Sequence[str]) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for line in lines:
        cells = [cell.strip() for cell in line.split("\t")]
        if not _GPU.fullmatch(cells[0]):
            if line.startswith("Legend"):
                break
            continue
        if cells[0] in rows:
            raise UnreadableOutput(f"row {cells[0]} is there twice; {_AGAIN}")
        rows[cells[0]] = cells
    return rows


def _refuse_holes(names: Sequence[str], what: str) -> None:
    numbers = [int(name.removeprefix("GPU")) for name in names]
    if len(set(numbers)) != len(numbers):
        raise UnreadableOutput(f"a {what} is there twice: {', '.join(names)}; {_AGAIN}")
    missing = sorted(set(range(max(numbers, default=-1) + 1)) - set(numbers))
    if missing:
        shown = ", ".join(f"GPU{number}" for number in missing)
        raise UnreadableOutput(f"the {what} of {shown} is missing among {len(numbers)} GPUs")


def _links(cells: Sequence[str], columns: Sequence[int], row: int) -> list[tuple[LinkClass, int]]:
    found: list[tuple[LinkClass, int]] = []
    for other, column in enumerate(columns):
        cell = cells[column] if column < len(cells) else ""
        nvlink = _NVLINK.fullmatch(cell)
        where = f"the link from GPU{row} to GPU{other}"
        if nvlink:
            found.append(("NV", int(nvlink.group(1))))
        elif cell in _CLASSES and (cell == "X") == (row == other):
            found.append((cast("LinkClass", cell), 0))
        elif not cell:
            raise UnreadableOutput(f"{where} is empty; {_AGAIN}")
        else:
            raise UnreadableOutput(f"{where} says {cell[:20]!r}, which is no link class known here")
    return found


def _check_symmetry(matrix: Sequence[Sequence[tuple[LinkClass, int]]]) -> None:
    for one, row in enumerate(matrix):
        for other in range(one):
            if row[other] != matrix[other][one]:
                raise UnreadableOutput(
                    f"GPU{one} to GPU{other} is {row[other][0]}, but back it is "
                    f"{matrix[other][one][0]}; {_AGAIN}"
                )


def _tail(names: Sequence[str], cells: Sequence[str], row: int) -> tuple[str | None, int | None]:
    """(CPU list, NUMA node) of a GPU, from the cells after its links."""
    cells = list(cells)
    # Rows have one empty cell more than names, between NUMA Affinity and GPU NUMA ID; of drivers
    # before "GPU NUMA ID" some have it between CPU Affinity and NUMA Affinity.
    extra = [at for at, cell in enumerate(cells) if not cell and 0 < at < len(cells) - 1]
    if len(cells) == len(names) + 1 and extra:
        del cells[extra[-1]]
    if len(cells) > len(names) and not any(cells[len(names) :]):
        del cells[len(names) :]
    if len(cells) != len(names):
        raise UnreadableOutput(
            f"the row of GPU{row} ends in {len(cells)} cells under {len(names)} names; {_AGAIN}"
        )
    by_name = dict(zip(names, cells, strict=True))
    cpus, node = by_name["CPU Affinity"], by_name.get("NUMA Affinity", "")
    if cpus not in ("", "N/A") and not _CPU_LIST.fullmatch(cpus):
        raise UnreadableOutput(f"the CPU affinity of GPU{row} is {cpus[:20]!r}, no list of CPUs")
    if node not in ("", "N/A") and not _CPU_LIST.fullmatch(node):
        raise UnreadableOutput(f"the NUMA affinity of GPU{row} is {node[:20]!r}, no node")
    return (
        None if cpus in ("", "N/A") else cpus,
        int(node) if node.isdigit() and len(node) < 5 else None,
    )
