"""What `fleet plan` prints for people: equal hosts in one paragraph, what is refused last."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyinfra_deploy.planning.finding import Finding
    from pyinfra_deploy.planning.foresight import Foresight
    from pyinfra_deploy.planning.gpu_memory import Range
    from pyinfra_deploy.planning.memory import MemoryBudget
    from pyinfra_deploy.planning.node_engines import NodeEngine
    from pyinfra_deploy.planning.parallelism import LayoutVerdict

GIB = 1024**3
WIDTH = 100
_NUMBERED = re.compile(r"(.*?)([0-9]+)")


@dataclass(frozen=True)
class Line:
    """A line to be wrapped; its later lines begin at `hanging`."""

    text: str
    indent: int = 0
    hanging: int = 12

    def __str__(self) -> str:
        return textwrap.fill(
            self.text,
            WIDTH,
            initial_indent=" " * self.indent,
            subsequent_indent=" " * self.hanging,
            break_long_words=False,
            break_on_hyphens=False,
        )


@dataclass(frozen=True)
class Group:
    """Hosts of which the same is to be said; `body` is that, without their names."""

    foresights: tuple[Foresight, ...]
    body: tuple[Line, ...]

    @property
    def first(self) -> Foresight:
        return self.foresights[0]

    @property
    def text(self) -> str:
        names = host_ranges([one.host for one in self.foresights])
        many = len(self.foresights)
        head = f"{names}: {verdict(self.first)}" + (f" ({many} hosts alike)" if many > 1 else "")
        seen = [] if self.first.unread else [("hardware", hardware(self.foresights))]
        lines = [Line(head, hanging=4), *_rows(seen)]
        return "\n".join(map(str, [*lines, *self.body]))


def groups(found: Iterable[tuple[Foresight, Sequence[str] | None]]) -> list[Group]:
    """In the inventory's order, the refused ones last: nearest to where the reader is."""
    alike: dict[tuple[str, tuple[str, ...], tuple[Line, ...]], list[Foresight]] = {}
    for foresight, changes in found:
        # Wrapped only when they are printed: for a hundred hosts it would take half a second.
        key = (verdict(foresight), tuple(_machine(foresight)), tuple(_body(foresight, changes)))
        alike.setdefault(key, []).append(foresight)
    every = [Group(tuple(hosts), body) for (_, _, body), hosts in alike.items()]
    return sorted(every, key=lambda group: (bool(group.first.refused), group.first.unknown))


def _body(foresight: Foresight, changes: Sequence[str] | None) -> Iterator[Line]:
    """Model and memory, what a deploy would change, findings."""
    rows = []
    if foresight.shape is not None:
        rows.append(("model", f"{foresight.shape.label}, {_weights(foresight)}"))
    if foresight.budget is not None:
        rows += memory(foresight.budget)
    if foresight.placement is not None:
        rows.append(("placement", str(foresight.placement)))
    if changes is not None:
        listed = changes or ["none: the host is as the settings want it"]
        rows += [("" if at else "changes", text) for at, text in enumerate(listed)]
    yield from _rows(rows)
    for finding in foresight.findings:
        yield from finding_lines(finding)


def _rows(rows: Iterable[tuple[str, str]]) -> list[Line]:
    return [Line(f"  {label:<9} {text}") for label, text in rows]


def host_ranges(names: Sequence[str]) -> str:
    """["gpu01", "gpu02", "gpu03", "web"] is "gpu01-gpu03, web"; names keep their order."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _follows(before: str, name: str) -> bool:
    one, other = _NUMBERED.fullmatch(before), _NUMBERED.fullmatch(name)
    if one is None or other is None or one[1] != other[1] or len(one[2]) != len(other[2]):
        return False
    return int(other[2]) == int(one[2]) + 1


def verdict(foresight: Foresight) -> str:
    if foresight.refused:
        return "REFUSED: " + ", ".join(finding.id for finding in foresight.refused)
    if foresight.unknown:
        return "not everything could be found out"
    warnings = sum(finding.severity == "warn" for finding in foresight.findings)
    return "ok" if not warnings else f"ok, {warnings} warning{'s' if warnings > 1 else ''}"


def hardware(alike: Sequence[Foresight]) -> str:
    """Of hosts that differ in their free disk space at most."""
    free = [
        one.hardware.disk_free_bytes / GIB
        for one in alike
        if one.hardware.disk_free_bytes is not None
    ]
    disk = [f"{_span(min(free), max(free), '.0f')} GiB free on disk"] if free else []
    return ", ".join([*_machine(alike[0]), *disk])


def _machine(foresight: Foresight) -> list[str]:
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
    if found.llm_mount:
        parts.append(f"models on {found.llm_mount.kind}")
    return parts


def _span(low: float, high: float, form: str) -> str:
    """ "5.6 to 15.9", or one number where both read the same."""
    first, last = format(low, form), format(high, form)
    return first if first == last else f"{first} to {last}"


def _weights(foresight: Foresight) -> str:
    shape = foresight.shape
    assert shape is not None
    quantization = shape.quantization.method if shape.quantization else shape.dtype
    context = f", native context {shape.native_context}" if shape.native_context else ""
    return f"{shape.weights.total_bytes / GIB:.1f} GiB of weights ({quantization}){context}"


def memory(budget: MemoryBudget) -> Iterator[tuple[str, str]]:
    """(label, text) of a budget; sizes are per GPU, the fullest one."""
    low, high = budget.available.low / GIB, budget.available.high / GIB
    yield (
        "layout",
        f"{budget.layout}: {budget.weights_bytes / GIB:.1f} GiB of weights per GPU, "
        f"utilization {budget.utilization:g} of {budget.total.middle / GIB:.2f} GiB",
    )
    source = (
        "the engine's own figure, from its start with this release"
        if budget.source == "measured"
        else "an estimate, low to high"
    )
    per_token = budget.cache_bytes_per_token
    each = f"; {per_token:,.0f} bytes per token" if per_token else ""
    yield "KV cache", f"{_span(low, high, '.1f')} GiB per GPU ({source}){each}"
    if budget.tokens is not None and budget.requests is not None:
        typical = budget.typical_requests
        at_typical = (
            f", {_span(typical.low, typical.high, '.0f')} of {budget.typical_tokens:,}"
            if typical is not None
            else ""
        )
        yield (
            "requests",
            f"{_span(budget.requests.low, budget.requests.high, '.1f')} at once of max-model-len "
            f"{budget.max_model_len:,}{at_typical}; "
            f"{_span(budget.tokens.low, budget.tokens.high, ',.0f')} tokens",
        )
    if budget.longest_context is not None:
        yield "context", _context(budget.longest_context)


def _context(longest: Range) -> str:
    """Both ends are cut at what the model was made for, or at max-model-len above that."""
    if longest.low == longest.high:
        return f"max-model-len up to {longest.low:,.0f} fits"
    low, high = f"{longest.low:,.0f}", f"{longest.high:,.0f}"
    return f"max-model-len up to {low} fits in any case, above {high} in none"


def finding_lines(finding: Finding) -> Iterator[Line]:
    yield Line(f"  {finding.severity:<9} {finding.subject}: {finding.message} [{finding.id}]")
    for label, text in (
        ("seen", finding.evidence),
        ("fix", finding.fix if finding.severity != "note" else ""),
        ("source", finding.source if finding.severity == "refuse" else ""),
    ):
        if text:
            yield Line(f"{label + ':':<8}{text}", 12, 20)


def layouts_text(verdicts: Sequence[LayoutVerdict], engines: Sequence[NodeEngine] = ()) -> str:
    """Every layout of the GPUs, the best first, each with why or why not, those with the same
    reason against them together; after them an engine for each NUMA node."""
    lines = []
    against: dict[str, list[LayoutVerdict]] = {}
    for one in verdicts:
        if one.legal:
            mark = ("yes", "maybe", "no")[one.fits]
            lines.append(str(Line(f"  {mark:<6} {one.layout!s:<16} {one.why}", hanging=26)))
        else:
            # One reason is enough; --json has them all.
            against.setdefault(one.reasons[0], []).append(one)
    for reason, refused in against.items():
        too = ", ".join(str(one.layout) for one in refused[1:])
        said = reason + (f" So too: {too}." if too else "")
        lines.append(str(Line(f"  {'no':<6} {refused[0].layout!s:<16} {said}", hanging=26)))
    if engines:
        each = "; ".join(map(str, engines))
        said = f"  {'yes':<6} {f'{len(engines)} engines':<16} one for each NUMA node: {each}."
        said += " The deploy runs one engine on a host; a unit of your own for each would say:"
        lines.append(str(Line(said, hanging=26)))
        lines += [str(Line("; ".join(one.unit), 26, 28)) for one in engines]
    return "\n".join(lines)


def summary(foresights: Sequence[Foresight], not_read: Sequence[str]) -> str:
    refused = [one.host for one in foresights if one.refused_for_sure]
    deployed = sum(not (one.refused or one.unread) for one in foresights)
    parts = [f"{deployed} of {len(foresights)} hosts would be deployed"]
    if refused:
        parts.append(f"refused: {host_ranges(refused)}")
    if not_read:
        parts.append(f"could not be read: {host_ranges(not_read)}")
    unsure = [one for one in foresights if one.unknown and not one.refused_for_sure]
    if unsure:
        why = sorted({one.id for foresight in unsure for one in foresight.what_is_unknown})
        hosts = host_ranges([one.host for one in unsure])
        parts.append(f"not all could be found out: {hosts} ({', '.join(why)})")
    return str(Line("; ".join(parts) + ".", hanging=4))
