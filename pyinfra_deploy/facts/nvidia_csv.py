"""`nvidia-smi --query-gpu=... --format=csv`: fills what the XML lacks (the compute capability) and
stands in for it where it is missing.

Properties have old and new names (clocks_throttle_reasons.* became clocks_event_reasons.* with the
535 driver); both are read. The header tells which columns there are.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.hardware import Gpu, GpuProcess
from pyinfra_deploy.facts.nvidia_failure import what_it_is
from pyinfra_deploy.facts.values import Doubts, flag, is_absent, number, pci_address, whole, words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BAD_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')
_UNIT_IN_HEADER = re.compile(r"\s*\[[^\]]*\]$")
_REASON = re.compile(r"clocks_(?:event|throttle)_reasons\.(.+)")
_NOT_REASONS = ("active", "supported")


def _whole(*units: str) -> Callable[[str, str, Doubts], int | None]:
    return lambda text, where, doubts: whole(text, units, where, doubts)


def _number(*units: str) -> Callable[[str, str, Doubts], float | None]:
    return lambda text, where, doubts: number(text, units, where, doubts)


def _flag(yes: str, no: str) -> Callable[[str, str, Doubts], bool | None]:
    return lambda text, where, doubts: flag(text, (yes,), (no,), where, doubts)


def _capability(text: str, where: str, doubts: Doubts) -> tuple[int, int] | None:
    if is_absent(text):
        return None
    match = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})", text)
    if match is None:
        doubts.add(where, text)
        return None
    return int(match.group(1)), int(match.group(2))


# Property of --query-gpu, under each of its names (nvidia-smi --help-query-gpu) -> field, reader.
_PROPERTIES: dict[str, tuple[str, Callable[[str, str, Doubts], Any]]] = {
    "name": ("name", words),
    "gpu_name": ("name", words),
    "uuid": ("uuid", words),
    "gpu_uuid": ("uuid", words),
    "memory.total": ("memory_total_mib", _whole("MiB")),
    "memory.used": ("memory_used_mib", _whole("MiB")),
    "memory.reserved": ("memory_reserved_mib", _whole("MiB")),
    "compute_cap": ("compute_capability", _capability),
    "ecc.mode.current": ("ecc_enabled", _flag("Enabled", "Disabled")),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected_volatile", _whole()),
    "ecc.errors.uncorrected.aggregate.total": ("ecc_uncorrected_aggregate", _whole()),
    "retired_pages.pending": ("retired_pages_pending", _flag("Yes", "No")),
    "mig.mode.current": ("mig_enabled", _flag("Enabled", "Disabled")),
    "persistence_mode": ("persistence_enabled", _flag("Enabled", "Disabled")),
    "power.limit": ("power_limit_watts", _number("W")),
    "enforced.power.limit": ("power_limit_watts", _number("W")),
    "power.default_limit": ("power_default_limit_watts", _number("W")),
    "power.draw": ("power_draw_watts", _number("W")),
    "temperature.gpu": ("temperature_c", _whole("C")),
    "pstate": ("performance_state", words),
    "utilization.gpu": ("utilization_percent", _whole("%")),
    "pcie.link.gen.current": ("pcie_generation", _whole()),
    "pcie.link.gen.max": ("pcie_generation_max", _whole()),
    "pcie.link.gen.gpumax": ("pcie_generation_device_max", _whole()),
    "pcie.link.gen.hostmax": ("pcie_generation_host_max", _whole()),
    "pcie.link.width.current": ("pcie_width", _whole()),
    "pcie.link.width.max": ("pcie_width_max", _whole()),
    "fan.speed": ("fan_percent", _whole("%")),
    "display_active": ("display_active", _flag("Enabled", "Disabled")),
    "clocks.current.sm": ("clock_sm_mhz", _whole("MHz")),
    "clocks.sm": ("clock_sm_mhz", _whole("MHz")),
    "clocks.max.sm": ("clock_sm_max_mhz", _whole("MHz")),
    "clocks.current.memory": ("clock_memory_mhz", _whole("MHz")),
    "clocks.mem": ("clock_memory_mhz", _whole("MHz")),
    "clocks.max.memory": ("clock_memory_max_mhz", _whole("MHz")),
    "clocks.max.mem": ("clock_memory_max_mhz", _whole("MHz")),
}


def parse_query_gpu(text: str) -> tuple[tuple[Gpu, ...], str | None, tuple[tuple[str, str], ...]]:
    """(GPUs, the driver's version if it was asked, doubts).

    Raises UnreadableOutput without a header line or with rows that do not fit it.
    """
    unknown = _BAD_FIELD.search(text)
    if unknown:
        raise UnreadableOutput(f"this driver does not know the property {unknown.group(1)}")
    lines = [line for line in text.lstrip("\ufeff").splitlines() if line.strip()]
    at = _header(lines)
    if at is None:
        other = what_it_is(text)
        said = f"this is {other}" if other else "there is no header line with property names"
        raise UnreadableOutput(f"{said}; leave out `noheader`, so that columns have names")
    header = [_UNIT_IN_HEADER.sub("", cell.strip()) for cell in lines[at].split(",")]
    doubts, gpus, driver = Doubts(), [], None
    for number_of_row, line in enumerate(lines[at + 1 :]):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(header):
            raise UnreadableOutput(
                f"row {number_of_row} has {len(cells)} cells under {len(header)} names: {line[:80]}"
            )
        row = dict(zip(header, cells, strict=True))
        gpus.append(_gpu(number_of_row, row, doubts))
        version = row.get("driver_version", "")
        driver = driver or (version if re.fullmatch(r"\d+(\.\d+)+", version) else None)
    if not gpus:
        raise UnreadableOutput("there is a header and no GPU below it: the output is cut short")
    return tuple(gpus), driver, tuple(doubts.found)


def parse_remapped_rows(text: str) -> dict[str, tuple[bool | None, bool | None]]:
    """`--query-remapped-rows`: UUID -> (pending, failed). Raises UnreadableOutput."""
    found = {}
    for row in _rows(text, "gpu_uuid"):
        pending, failed = (
            _yes(row.get(f"remapped_rows.{name}", "")) for name in ("pending", "failure")
        )
        found[row["gpu_uuid"]] = (pending, failed)
    return found


def _yes(text: str) -> bool | None:
    """Older drivers print numbers; None for [N/A] of cards that remap nothing."""
    if is_absent(text):
        return None
    if text.lower() in ("yes", "no", "0", "1"):
        return text.lower() in ("yes", "1")
    raise UnreadableOutput(f"neither yes nor no: {text[:40]}")


def parse_compute_apps(text: str) -> dict[str, tuple[GpuProcess, ...]]:
    """`--query-compute-apps`: UUID -> its processes. Raises UnreadableOutput."""
    found: dict[str, tuple[GpuProcess, ...]] = {}
    doubts = Doubts()
    for row in _rows(text, "gpu_uuid", "pid"):
        pid = whole(row["pid"], (), "pid", doubts)
        if pid is None:
            raise UnreadableOutput(f"a process without a number: {row['pid'][:40]}")
        memory = whole(row.get("used_gpu_memory"), ("MiB",), "used_gpu_memory", doubts)
        process = GpuProcess(pid, row.get("process_name", ""), memory)
        found[row["gpu_uuid"]] = (*found.get(row["gpu_uuid"], ()), process)
    return found


def _rows(text: str, *needed: str) -> list[dict[str, str]]:
    """Below a header; a name with commas (a process's) keeps its cells together."""
    unknown = _BAD_FIELD.search(text)
    if unknown:
        raise UnreadableOutput(f"this driver does not know the property {unknown.group(1)}")
    lines = [line for line in text.splitlines() if line.strip()]
    names = [_UNIT_IN_HEADER.sub("", cell.strip()) for cell in (lines or [""])[0].split(",")]
    if not set(needed) <= set(names):
        other = what_it_is(text)
        raise UnreadableOutput(f"this is {other}" if other else "there is no header line")
    rows = []
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) > len(names) and "process_name" in names:
            at, more = names.index("process_name"), len(cells) - len(names)
            cells[at : at + more + 1] = [", ".join(cells[at : at + more + 1])]
        if len(cells) != len(names):
            raise UnreadableOutput(f"a row does not fit its header: {line[:80]}")
        rows.append(dict(zip(names, cells, strict=True)))
    return rows


def _header(lines: Sequence[str]) -> int | None:
    for at, line in enumerate(lines):
        names = {_UNIT_IN_HEADER.sub("", cell.strip()) for cell in line.split(",")}
        if "index" in names or len(names & set(_PROPERTIES)) >= 2:
            return at
    return None


def _gpu(row_number: int, row: dict[str, str], doubts: Doubts) -> Gpu:
    index = whole(row.get("index"), (), f"row {row_number}: index", doubts)
    index = row_number if index is None else index
    found: dict[str, Any] = {}
    for name, text in row.items():
        known = _PROPERTIES.get(name)
        if known:
            field, read = known
            value = read(text, f"GPU {index}: {name}", doubts)
            found[field] = value if found.get(field) is None else found[field]
    if "fan.speed" in row:
        found["fan_present"] = not is_absent(row["fan.speed"])
    address = row.get("pci.bus_id") or row.get("gpu_bus_id") or row.get("gpu_bus_id.0")
    found["name"] = found.get("name") or "unknown"
    return Gpu(
        index=index,
        pci_address=pci_address(address),
        throttle_reasons=_reasons(index, row, doubts),
        **found,
    )


def _reasons(index: int, row: dict[str, str], doubts: Doubts) -> tuple[str, ...]:
    active = []
    for name, text in row.items():
        match = _REASON.fullmatch(name)
        if match and match.group(1) not in _NOT_REASONS:
            where = f"GPU {index}: {name}"
            if flag(text, ("Active",), ("Not Active",), where, doubts):
                active.append(match.group(1))
    return tuple(active)


def fill(gpus: tuple[Gpu, ...], others: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """`gpus` with what they lack and `others` have, matched by UUID or PCI address."""
    by_key = {key: other for other in others for key in (other.uuid, other.pci_address) if key}
    return tuple(_filled(gpu, by_key.get(gpu.uuid or "") or by_key.get(gpu.pci_address or ""))
                 for gpu in gpus)  # fmt: skip


def _filled(gpu: Gpu, other: Gpu | None) -> Gpu:
    if other is None:
        return gpu
    told = vars(other)
    lacking = {
        name: told[name]
        for name, value in vars(gpu).items()
        if value is None and told[name] is not None
    }
    return replace(gpu, **lacking) if lacking else gpu
