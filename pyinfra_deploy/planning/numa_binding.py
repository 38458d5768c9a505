"""engine.args and engine.env that bind memory or CPUs to NUMA nodes, against where the GPUs lie."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyinfra_deploy.facts.hardware import Hardware
    from pyinfra_deploy.settings.schema import Settings

_SOURCE = "vllm-project/vllm#38635; vllm/utils/numa_utils.py and config/parallel.py of 0.32.0"
_MEMBIND = re.compile(r"(?:--membind|NUMAMask)[= ]([0-9,-]+)")


def worker_binding_findings(
    hardware: Hardware, settings: Settings, nodes: Sequence[int | None]
) -> list[Finding]:
    """nodes: of the engine's GPUs, in the order of ranks; None where one is not known."""
    args = settings.engine.args
    found = list(_by_environment(hardware.host, settings, nodes))
    listed = _numbers(args.get("numa-bind-nodes"))
    if listed is not None:
        found += _by_nodes(hardware, listed, nodes)
    elif args.get("numa-bind") is True and len(hardware.numa) == 1:
        found.append(_undetected(hardware))
    return found


def _by_environment(
    host: str, settings: Settings, nodes: Sequence[int | None]
) -> Iterator[Finding]:
    for name, value in settings.engine.env.items():
        match = _MEMBIND.search(value)
        asked = _numbers(match[1].replace("-", ",")) if match else None
        if match and asked and len(set(asked)) == 1:
            yield from _one_node(host, f"engine.env.{name}", value, asked[0], nodes)


def _by_nodes(
    hardware: Hardware, listed: Sequence[int], nodes: Sequence[int | None]
) -> Iterator[Finding]:
    key, evidence = "engine.args.numa-bind-nodes", f"numa-bind-nodes: {list(listed)}"
    if len(set(listed)) == 1:
        refused = list(_one_node(hardware.host, key, evidence, listed[0], nodes))
        if refused:
            yield from refused
            return
    if len(listed) < len(nodes):
        yield Finding(
            "placement.numa-bind-nodes",
            "refuse",
            hardware.host,
            key,
            f"numa-bind-nodes has {len(listed)} entries and the engine {len(nodes)} GPUs: vLLM "
            "wants one for each GPU and would not start",
            f"write {_list(nodes)}, or remove the line: vLLM finds the nodes by itself",
            evidence=evidence,
            source=_SOURCE,
        )
        return
    wrong = [
        (rank, asked, own)
        for rank, (asked, own) in enumerate(zip(listed, nodes, strict=False))
        if own is not None and asked != own
    ]
    if wrong:
        yield Finding(
            "placement.numa-bind-nodes",
            "warn",
            hardware.host,
            key,
            "numa-bind-nodes binds workers to nodes that their GPUs do not lie on",
            f"write {_list(nodes)}, or remove the line: vLLM finds the nodes by itself",
            evidence="; ".join(f"rank {r}: node {a}, its GPU on {o}" for r, a, o in wrong[:4]),
            source=_SOURCE,
        )


def _one_node(
    host: str, key: str, evidence: str, node: int, nodes: Sequence[int | None]
) -> Iterator[Finding]:
    others = {own for own in nodes if own is not None and own != node}
    if not others:
        return
    known = sorted({own for own in nodes if own is not None})
    yield Finding(
        "placement.one-node-memory",
        "refuse",
        host,
        key,
        f"{key} binds the memory of all workers to NUMA node {node}, and the engine's GPUs lie on "
        f"nodes {', '.join(map(str, known))}: the workers of the others would reach their memory "
        "through the other socket, and one node's memory would have to do for all",
        "remove it; engine.args: {numa-bind: true} binds each worker to its own GPU's node",
        evidence=evidence,
        source=_SOURCE,
    )


def _undetected(hardware: Hardware) -> Finding:
    return Finding(
        "placement.numa-bind-undetected",
        "refuse",
        hardware.host,
        "engine.args.numa-bind",
        "numa-bind is set and the host has one NUMA node: vLLM finds nothing to bind to and does "
        "not start",
        "remove numa-bind: with one node there is nothing to gain",
        evidence=f"NUMA nodes: {', '.join(str(node.node) for node in hardware.numa)}",
        source=_SOURCE,
    )


def _list(nodes: Sequence[int | None]) -> str:
    return f"[{', '.join('?' if node is None else str(node) for node in nodes)}]"


def _numbers(value: Any) -> list[int] | None:
    """[0, 1] of a list, of one number, or of "0 1" and "0,1"; None for anything else."""
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    items = value if isinstance(value, list) else [value]
    if not items or any(isinstance(item, bool) for item in items):
        return None
    texts = [str(item) for item in items]
    return [int(text) for text in texts] if all(text.isdigit() for text in texts) else None
