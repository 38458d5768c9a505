"""What `fleet plan` prints for people: a host a paragraph, what is refused last and in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyinfra_deploy.planning.finding import Finding
    from pyinfra_deploy.planning.foresight import Foresight
    from pyinfra_deploy.planning.memory import MemoryBudget
    from pyinfra_deploy.planning.node_engines import NodeEngine
    from pyinfra_deploy.planning.parallelism import LayoutVerdict

GIB = 1024**3


def host_text(foresight: Foresight, changes: Sequence[str] | None) -> str:
    """One host: hardware, model and memory, what a deploy would change, findings."""
    lines = [f"{foresight.host}: {verdict(foresight)}", f"  hardware  {hardware(foresight)}"]
    if foresight.shape is not None:
        lines.append(f"  model     {foresight.shape.label}, {_weights(foresight)}")
    if foresight.budget is not None:
        lines += [f"  {label:<9} {text}" for label, text in memory(foresight.budget)]
    if foresight.placement is not None:
        lines.append(f"  placement {foresight.placement}")
    if changes is not None:
        lines += _changes(changes)
    lines += [f"  {line}" for finding in foresight.findings for line in finding_lines(finding)]
    return "\n".join(lines)


def verdict(foresight: Foresight) -> str:
    if foresight.refused:
        return "REFUSED: " + ", ".join(finding.id for finding in foresight.refused)
    if foresight.unknown:
        return "not everything could be found out"
    warnings = sum(finding.severity == "warn" for finding in foresight.findings)
    return "ok" if not warnings else f"ok, {warnings} warning{'s' if warnings > 1 else ''}"


def hardware(foresight: Foresight) -> str:
    found = foresight.hardware
    counts: dict[str, int] = {}
    for gpu in found.gpus:
        memory_text = f" {gpu.memory_total_mib} MiB" if gpu.memory_total_mib else ""
        name = f"{gpu.name}{memory_text}"
        counts[name] = counts.get(name, 0) + 1
    parts = [f"{count}x {name}" for name, count in counts.items()] or ["no GPU listed"]
    if found.driver_version:
        parts.append(f"driver {found.driver_version}")
    if found.cpu_count:
        parts.append(f"{found.cpu_count} CPUs")
    if found.memory_total_bytes:
        parts.append(f"{found.memory_total_bytes / GIB:.0f} GiB")
    if found.disk_free_bytes is not None:
        parts.append(f"{found.disk_free_bytes / GIB:.0f} GiB free on disk")
    return ", ".join(parts)


def _weights(foresight: Foresight) -> str:
    shape = foresight.shape
    assert shape is not None
    quantization = shape.quantization.method if shape.quantization else shape.dtype
    context = f", native context {shape.native_context}" if shape.native_context else ""
    return f"{shape.weights.total_bytes / GIB:.1f} GiB of weights ({quantization}){context}"


def memory(budget: MemoryBudget) -> Iterable[tuple[str, str]]:
    """(label, text) of a budget; sizes are per GPU, the fullest one."""
    low, high = budget.available.low / GIB, budget.available.high / GIB
    yield (
        "layout",
        f"{budget.layout}: {budget.weights_bytes / GIB:.1f} GiB of weights per GPU, "
        f"utilization {budget.utilization:g} of {budget.total.middle / GIB:.2f} GiB",
    )
    source = "the engine's own figure" if budget.source == "measured" else "estimate, low to high"
    per_token = budget.cache_bytes_per_token
    each = f", {per_token:,.0f} bytes per token" if per_token else ""
    yield "KV cache", f"{low:.1f} to {high:.1f} GiB per GPU ({source}){each}"
    if budget.tokens is not None and budget.requests is not None:
        typical = budget.typical_requests
        at_typical = (
            f", {typical.low:.0f} to {typical.high:.0f} at {budget.typical_tokens}"
            if typical is not None
            else ""
        )
        yield (
            "requests",
            f"{budget.requests.low:.1f} to {budget.requests.high:.1f} at once at "
            f"max-model-len {budget.max_model_len}{at_typical}; "
            f"{budget.tokens.low:,.0f} to {budget.tokens.high:,.0f} tokens",
        )
    if budget.longest_context is not None:
        yield (
            "context",
            f"max-model-len up to {budget.longest_context.low:,.0f} fits in any case, "
            f"above {budget.longest_context.high:,.0f} in none",
        )


def _changes(changes: Sequence[str]) -> list[str]:
    if not changes:
        return ["  changes   none: the host is as the settings want it"]
    return [f"  {'changes' if not index else '':<9} {text}" for index, text in enumerate(changes)]


def finding_lines(finding: Finding) -> list[str]:
    head = f"{finding.severity:<9} {finding.subject}: {finding.message} [{finding.id}]"
    lines = [head]
    for label, text in (
        ("seen", finding.evidence),
        ("fix", finding.fix if finding.severity != "note" else ""),
        ("source", finding.source if finding.severity == "refuse" else ""),
    ):
        if text:
            lines.append(f"{'':<9}   {label}: {text}")
    return lines


def layouts_text(verdicts: Sequence[LayoutVerdict], engines: Sequence[NodeEngine] = ()) -> str:
    """Every layout of the GPUs, the best first, each with why or why not; after them an engine for
    each NUMA node."""
    lines = []
    for one in verdicts:
        mark = "no" if not one.legal else ("yes", "maybe", "no")[one.fits]
        why = one.why if one.legal else "; ".join(one.reasons)
        lines.append(f"  {mark:<6} {one.layout!s:<16} {why}")
    if engines:
        each = "; ".join(map(str, engines))
        lines.append(
            f"  {'yes':<6} {f'{len(engines)} engines':<16} one for each NUMA node: {each}."
        )
    return "\n".join(lines)


def summary(foresights: Sequence[Foresight], not_read: Sequence[str]) -> str:
    refused = [one.host for one in foresights if one.refused]
    parts = [f"{len(foresights) - len(refused)} of {len(foresights)} hosts would be deployed"]
    if refused:
        parts.append(f"refused: {', '.join(refused)}")
    if not_read:
        parts.append(f"could not be read: {', '.join(not_read)}")
    return "; ".join(parts) + "."
