"""Which parallel layouts a model can have on a host's GPUs, and whether the chosen one works.

The operator's choice in engine.args is checked, not overridden; the list of layouts, each with what
stands against it and the best first, says what else there would be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.engine_choice import parse_version, read_choice
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.gpu_order import LINK_DISTANCE
from pyinfra_deploy.planning.layout import Layout
from pyinfra_deploy.planning.layout_rules import layout_findings
from pyinfra_deploy.planning.memory import (
    TYPICAL_TOKENS,
    MemoryBudget,
    budget,
    in_gib,
    measured,
    smallest_gpu,
)
from pyinfra_deploy.planning.memory_rules import (
    context_findings,
    memory_findings,
    version_findings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyinfra_deploy.facts.hardware import Gpu, LinkClass, Topology
    from pyinfra_deploy.planning.engine_choice import EngineChoice
    from pyinfra_deploy.planning.engine_log import EngineFigures
    from pyinfra_deploy.planning.model_shape import ModelShape

_NAMES = {
    1: "within a PCIe switch",
    2: "across PCIe switches",
    3: "across a PCIe host bridge",
    4: "across PCIe host bridges of a NUMA node",
    5: "across NUMA nodes",
}


@dataclass(frozen=True)
class LayoutVerdict:
    """One layout. findings: all that was found about it. fits: 0 in any case, 1 perhaps, 2 not.
    budget: None too where vLLM refuses the layout on any GPU. link: the farthest step inside a
    group that has to agree on every token; None when the topology is not known. idle: GPUs that it
    leaves to nothing. why: its place in the order, in a sentence."""

    layout: Layout
    budget: MemoryBudget | None
    findings: tuple[Finding, ...]
    fits: int
    link: int | None
    idle: int
    why: str

    @property
    def legal(self) -> bool:
        return all(finding.severity != "refuse" for finding in self.findings)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it cannot run."""
        return tuple(one.message for one in self.findings if one.severity == "refuse")


def check_choice(
    shape: ModelShape,
    gpus: Sequence[Gpu],
    args: Mapping[str, Any],
    vllm_version: str | None,
    topology: Topology | None = None,
    host: str = "",
    typical_tokens: int = TYPICAL_TOKENS,
    figures: EngineFigures | None = None,
) -> tuple[MemoryBudget | None, tuple[Finding, ...]]:
    """The operator's engine.args on these GPUs: the memory budget and everything to be said.

    gpus: those the engine will use; whether they are healthy, alike and free say the findings
    about hardware. vllm_version: None where it is not known. figures: what the engine itself
    said, started with the same release on such GPUs; they replace the estimate. The budget is None
    where the GPUs do not tell their memory or there are none.
    """
    choice, findings = read_choice(args, host)
    found = list(findings)
    version = parse_version(vllm_version)
    if not gpus:
        found.append(_no_gpus(host))
        return None, tuple(found)
    found.extend(_gpus(gpus, host))
    found.extend(layout_findings(shape, choice.layout, choice, version, len(gpus), host))
    found.extend(context_findings(shape, choice, host))
    found.extend(version_findings(shape, choice, version, host))
    gpu = smallest_gpu(gpus)
    own = budget(shape, gpu, choice.layout, choice, vllm_version, typical_tokens) if gpu else None
    if own is not None and figures is not None:
        own = measured(own, figures)
    if own is not None:
        found.extend(memory_findings(own, host))
        found.extend(_draft(choice, host))
    found.extend(_crossing(choice.layout, topology, len(gpus), host))
    return own, tuple(found)


def all_layouts(
    shape: ModelShape,
    gpus: Sequence[Gpu],
    args: Mapping[str, Any],
    vllm_version: str | None,
    topology: Topology | None = None,
    host: str = "",
    typical_tokens: int = TYPICAL_TOKENS,
) -> tuple[LayoutVerdict, ...]:
    """Every TP x PP x DP (+ EP) on these GPUs or some of them, the best first.

    In order: those that vLLM accepts; that fit in any case, then perhaps; with fewer pipeline
    stages (each adds to the time of a token); that leave fewer GPUs idle; whose steps between GPUs
    are shorter; with one copy of the model rather than several; that serve more requests.
    Everything in args but the layout itself is kept.
    """
    choice, _ = read_choice(args, host)
    gpu = smallest_gpu(gpus)
    version = parse_version(vllm_version)
    verdicts = []
    for layout in candidate_layouts(len(gpus), shape.experts is not None):
        own = replace(choice, layout=layout)
        against = layout_findings(shape, layout, own, version, len(gpus), host)
        found = None
        refused = any(one.severity == "refuse" for one in against)
        if gpu is not None and not refused:
            found = budget(shape, gpu, layout, own, vllm_version, typical_tokens)
        if found is not None:
            against = (*against, *memory_findings(found, host))
        fits = _fits(found)
        link = farthest(layout, topology, len(gpus))
        idle = len(gpus) - layout.gpus
        why = "vLLM refuses it." if refused else _why(layout, found, fits, link, idle)
        verdicts.append(LayoutVerdict(layout, found, against, fits, link, idle, why))
    return tuple(sorted(verdicts, key=_order))


def candidate_layouts(gpus: int, experts: bool) -> tuple[Layout, ...]:
    """All layouts that take so many GPUs or fewer: of seven, with a card lost, TP4 takes four."""
    found = []
    for tensor in range(1, gpus + 1):
        for pipeline in range(1, gpus // tensor + 1):
            for data in range(1, gpus // (tensor * pipeline) + 1):
                found.append(Layout(tensor, pipeline, data))
                if experts and tensor * data > 1:
                    found.append(Layout(tensor, pipeline, data, expert=True))
    return tuple(found)


def farthest(layout: Layout, topology: Topology | None, gpus: int) -> int | None:
    """The longest step inside one tensor parallel group (with experts: inside all that share
    them), when ranks take GPUs in order as vLLM does."""
    links = topology.links if topology is not None else ()
    if len(links) < gpus or layout.gpus > gpus or any(len(row) < gpus for row in links):
        return None
    # vLLM orders ranks as data x pipeline x tensor.
    worst = 0
    for start in range(0, layout.gpus, layout.tensor):
        group = range(start, start + layout.tensor)
        worst = max(worst, _widest(links, group))
    if layout.expert and layout.data > 1:
        worst = max(worst, _widest(links, range(layout.gpus)))
    return worst


def _widest(links: tuple[tuple[LinkClass, ...], ...], group: range) -> int:
    return max(
        (LINK_DISTANCE[links[one][other]] for one in group for other in group if one != other),
        default=0,
    )


def _fits(found: MemoryBudget | None) -> int:
    if found is None:
        return 1
    need = found.request_bytes or 0.0
    if found.available.high <= 0 or need > found.available.high:
        return 2
    return 0 if need <= found.available.low and found.available.low > 0 else 1


def _order(verdict: LayoutVerdict) -> tuple[object, ...]:
    layout, found = verdict.layout, verdict.budget
    requests = found.typical_requests.middle if found and found.typical_requests else 0.0
    warned = any(
        one.severity == "warn" or one.id == "parallel.fp8-blocks-refined"
        for one in verdict.findings
    )
    return (
        not verdict.legal,
        verdict.fits,
        warned,
        layout.pipeline,
        verdict.idle,
        verdict.link or 0,
        layout.data,
        -requests,
    )


def _why(layout: Layout, found: MemoryBudget | None, fits: int, link: int | None, idle: int) -> str:
    parts = []
    if found is None:
        parts.append("the GPUs' memory is not known")
    else:
        parts.append(("fits", "may fit", "does not fit")[fits])
        parts.append(f"{in_gib(found.weights_bytes)} of weights per GPU")
        room = found.available
        if fits < 2:
            parts.append(f"{in_gib(max(room.low, 0))} to {in_gib(room.high)} for the KV cache")
        if fits < 2 and found.typical_requests is not None:
            parts.append(
                f"about {found.typical_requests.middle:.0f} requests of "
                f"{found.typical_tokens} tokens at once"
            )
        if found.cache is not None and found.cache.copies > 1:
            parts.append(f"the same KV cache on {found.cache.copies} GPUs each")
    if layout.pipeline > 1:
        parts.append(f"{layout.pipeline} pipeline stages, one after the other for each token")
    if layout.data > 1:
        parts.append(f"{layout.data} copies of the attention layers and of the KV cache")
    if idle:
        parts.append(f"{idle} GPU{'s' if idle > 1 else ''} idle")
    if link:
        parts.append(f"tensor parallel steps {_NAMES[link]}")
    return "; ".join(parts) + "."


def _no_gpus(host: str) -> Finding:
    return Finding(
        "parallel.no-gpus",
        "refuse",
        host,
        "GPUs",
        "there is no GPU to plan for.",
        "see what nvidia-smi says on the host; runtime.device: cpu is for trials without a GPU.",
        "0 GPUs",
    )


def _gpus(gpus: Sequence[Gpu], host: str) -> list[Finding]:
    if any(gpu.memory_total_mib for gpu in gpus):
        return []
    return [
        Finding(
            "memory.gpu-unknown",
            "warn",
            host,
            "GPUs",
            "the GPUs did not tell their memory, so nothing was planned about it.",
            "see what nvidia-smi -q says of FB Memory Usage on the host.",
            ", ".join(f"{gpu.index}: {gpu.name}" for gpu in gpus),
        )
    ]


def _draft(choice: EngineChoice, host: str) -> list[Finding]:
    speculation = choice.speculation
    if speculation is None or speculation.draft_layers is not None:
        return []
    return [
        Finding(
            "memory.draft-unknown",
            "warn",
            host,
            "engine.args.speculative-config",
            f"the weights and the KV cache of the draft ({speculation.method}) are not in this "
            "plan.",
            "leave room for it: a lower max-model-len than the plan shows.",
            f"method: {speculation.method}",
        )
    ]


def _crossing(layout: Layout, topology: Topology | None, gpus: int, host: str) -> list[Finding]:
    link = farthest(layout, topology, gpus)
    if link is None or link < LINK_DISTANCE["SYS"] or layout.tensor == 1:
        return []
    return [
        Finding(
            "parallel.crosses-numa",
            "note",
            host,
            str(layout),
            f"{layout} exchanges every layer's result between GPUs of different NUMA nodes, over "
            "the link between the sockets.",
            "it works; fewer tensor parallel ranks with pipeline stages or copies per node may be "
            "faster: measure both.",
            f"nvidia-smi topo -m: SYS within {layout.tensor} ranks",
        )
    ]
