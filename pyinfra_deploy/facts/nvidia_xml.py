"""`nvidia-smi -q -x`, the main source on GPUs: drivers 384 to 610, nvsmi_device_v9.dtd to v13.dtd.

Elements were renamed over the years (power_readings became gpu_power_readings with the 535 driver,
clocks_throttle_reasons became clocks_event_reasons); both names are read. What is absent or "N/A"
is None.
"""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ElementTree  # entities are refused below
from dataclasses import dataclass

from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.hardware import DriverFailure, Gpu, GpuProcess
from pyinfra_deploy.facts.nvidia_failure import failure_in, what_it_is
from pyinfra_deploy.facts.values import (
    UNCLEAR,
    Doubts,
    flag_in,
    is_absent,
    number_in,
    pci_address,
    whole,
    whole_in,
    words,
)

_VERSION = re.compile(r"\d+(?:\.\d+)+")
# Nine tenths of the document, and nothing here reads it.
_CLOCK_LISTS = re.compile(r"<supported_clocks>.*?</supported_clocks>", re.DOTALL)
# nvidia-smi writes process names as they are, so that "<unknown>" or "a&b" breaks its XML.
_PROCESS_NAME = re.compile(r"<process_name>(.*?)</process_name>", re.DOTALL)
# XML 1.0 has no way to write these (https://www.w3.org/TR/xml/#charsets).
_NO_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_REASONS = ("clocks_event_reasons/", "clocks_throttle_reasons/")
_REASON = re.compile(r"clocks_(?:event|throttle)_reasons/clocks_(?:event|throttle)_reason_(.+)")
_WINDOWS_MODELS = ("WDDM", "TCC", "MCDM")


@dataclass(frozen=True)
class SmiReport:
    """What the XML says. failure: a GPU that is lost although the document is complete. doubts:
    (place, why) of everything in it that could not be read."""

    gpus: tuple[Gpu, ...]
    driver_version: str | None
    cuda_version: str | None
    attached_gpus: int | None
    failure: DriverFailure | None = None
    doubts: tuple[tuple[str, str], ...] = ()


class CutShort(UnreadableOutput):
    """The document begins and does not end."""


def parse_smi_xml(text: str) -> SmiReport:
    """Raises UnreadableOutput (CutShort for half a document), with words for a person."""
    body, rest = _document(text)
    root = _element_tree(body)
    doubts = Doubts()
    gpus = tuple(_gpu(index, element, doubts) for index, element in enumerate(root.findall("gpu")))
    _refuse_windows(root)
    attached = whole(root.findtext("attached_gpus"), (), "attached_gpus", doubts)
    if attached is not None and attached != len(gpus):
        doubts.found.append(
            ("attached_gpus", f"{attached} GPUs are attached, but {len(gpus)} are described")
        )
    for tag in ("driver_version", "attached_gpus"):
        if root.find(tag) is None and root.find("kmd_version") is None:
            doubts.found.append((tag, "is missing: this is a fragment of the document"))
    if rest.strip():
        doubts.found.append(("text around the document", " ".join(rest.split())[:200]))
    return SmiReport(
        gpus,
        _version(root, ("kmd_version", "driver_version"), doubts),
        _version(root, ("cuda_umd_version", "cuda_version"), doubts),
        attached,
        _lost(doubts, gpus) or failure_in(rest),
        tuple(doubts.found),
    )


def _document(text: str) -> tuple[str, str]:
    """(the document, what stands around it): warnings come before or after it."""
    text = text.lstrip("\ufeff")
    starts = [at for at in (text.find("<?xml"), text.find("<nvidia_smi_log>")) if at >= 0]
    if not starts:
        other = what_it_is(text)
        if other:
            raise UnreadableOutput(f"this is {other}")
        shown = " ".join(text.split())[:120]
        raise UnreadableOutput(f"no XML: {shown!r}" if shown else "it is empty")
    start = min(starts)
    end = text.rfind("</nvidia_smi_log>")
    if end < 0:
        raise CutShort(f"the XML is cut short after {len(text)} characters: its end is missing")
    end += len("</nvidia_smi_log>")
    return text[start:end], text[:start] + text[end:]


def _element_tree(body: str) -> ElementTree.Element:
    if "<!ENTITY" in body:
        raise UnreadableOutput("the XML declares entities, which nvidia-smi never does")
    body = _NO_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", _CLOCK_LISTS.sub("", body))
    try:
        root = ElementTree.fromstring(body)  # noqa: S314 - no entities, see above
    except ElementTree.ParseError:
        escaped = _PROCESS_NAME.sub(_escaped_name, body)
        try:
            root = ElementTree.fromstring(escaped)  # noqa: S314
        except ElementTree.ParseError as error:
            raise UnreadableOutput(f"the XML is damaged: {error}") from error
    if root.tag != "nvidia_smi_log":
        raise UnreadableOutput(f"the XML is no nvidia_smi_log but {root.tag}")
    return root


def _escaped_name(match: re.Match[str]) -> str:
    name = html.escape(html.unescape(match.group(1)), quote=False)
    return f"<process_name>{name}</process_name>"


def _refuse_windows(root: ElementTree.Element) -> None:
    for element in root.findall("gpu/driver_model/current_dm"):
        if (element.text or "").strip() in _WINDOWS_MODELS:
            raise UnreadableOutput(
                f"it was recorded on Windows (driver model {(element.text or '').strip()}), "
                "where vLLM does not run"
            )


def _version(root: ElementTree.Element, tags: tuple[str, ...], doubts: Doubts) -> str | None:
    """The 610 driver says beside the old names that they are deprecated."""
    for tag in tags:
        text = root.findtext(tag)
        match = _VERSION.match((text or "").strip())
        if match:
            return match.group()
        if not is_absent(text) and "deprecated" not in str(text).lower():
            doubts.add(tag, str(text))
    return None


def _lost(doubts: Doubts, gpus: tuple[Gpu, ...]) -> DriverFailure | None:
    if not doubts.lost:
        return None
    where = doubts.lost[0]
    index = int(where.split(":")[0].removeprefix("GPU ")) if where.startswith("GPU ") else None
    address = gpus[index].pci_address if index is not None else None
    return DriverFailure("gpu-lost", f"{where}: GPU is lost", address)


class _Reader:
    """Reads the values of one <gpu>; the first of several paths that is there counts."""

    def __init__(self, index: int, element: ElementTree.Element, doubts: Doubts) -> None:
        self.index = index
        self.element = element
        self.doubts = doubts
        # One walk instead of a search for each value: of an 8-GPU host that is half of the time.
        self.leaves: dict[str, str] = {}
        _gather(element, "", self.leaves)

    def text(self, *paths: str) -> str | None:
        for path in paths:
            found = self.leaves.get(path)
            if not is_absent(found):
                return found
        return None

    def _where(self, paths: tuple[str, ...]) -> str:
        return f"GPU {self.index}: {paths[0]}"

    def _doubt(self, paths: tuple[str, ...]) -> None:
        self.doubts.add(self._where(paths), str(self.text(*paths)))

    def whole(self, units: tuple[str, ...], *paths: str) -> int | None:
        value = whole_in(self.text(*paths), units)
        if value is UNCLEAR:
            self._doubt(paths)
            return None
        return value

    def number(self, units: tuple[str, ...], *paths: str) -> float | None:
        value = number_in(self.text(*paths), units)
        if value is UNCLEAR:
            self._doubt(paths)
            return None
        return value

    def flag(self, yes: str, no: str, *paths: str) -> bool | None:
        value = flag_in(self.text(*paths), (yes,), (no,))
        if value is UNCLEAR:
            self._doubt(paths)
            return None
        return value

    def words(self, *paths: str) -> str | None:
        return words(self.text(*paths), self._where(paths), self.doubts)


# What is read from elements of their own, because they come several times.
_LISTS = frozenset({"processes", "accounted_processes", "mig_devices", "encoder_stats"})


def _gather(element: ElementTree.Element, above: str, leaves: dict[str, str]) -> None:
    for child in element:
        path = above + child.tag
        if len(child):
            if child.tag not in _LISTS:
                _gather(child, path + "/", leaves)
        elif path not in leaves:
            leaves[path] = child.text or ""


def _gpu(index: int, element: ElementTree.Element, doubts: Doubts) -> Gpu:
    read = _Reader(index, element, doubts)
    name = read.words("product_name")
    if name is None:
        doubts.found.append((f"GPU {index}: product_name", "is missing"))
    if element.find("fb_memory_usage") is None:
        doubts.found.append((f"GPU {index}: fb_memory_usage", "is missing: a fragment"))
    power = "gpu_power_readings"
    link = "pci/pci_gpu_link_info/"
    fan = read.leaves.get("fan_speed")
    return Gpu(
        index=index,
        name=name or "unknown",
        uuid=read.words("uuid"),
        pci_address=pci_address(element.get("id")) or pci_address(read.text("pci/pci_bus_id")),
        memory_total_mib=read.whole(("MiB",), "fb_memory_usage/total"),
        memory_used_mib=read.whole(("MiB",), "fb_memory_usage/used"),
        memory_reserved_mib=read.whole(("MiB",), "fb_memory_usage/reserved"),
        ecc_enabled=read.flag("Enabled", "Disabled", "ecc_mode/current_ecc"),
        ecc_uncorrected_volatile=_uncorrected(read, "volatile"),
        ecc_uncorrected_aggregate=_uncorrected(read, "aggregate"),
        retired_pages_pending=read.flag(
            "Yes", "No", "retired_pages/pending_retirement", "retired_pages/pending_blacklist"
        ),
        remapped_rows_pending=read.flag("Yes", "No", "remapped_rows/remapped_row_pending"),
        remapped_rows_failed=read.flag("Yes", "No", "remapped_rows/remapped_row_failure"),
        mig_enabled=read.flag("Enabled", "Disabled", "mig_mode/current_mig"),
        persistence_enabled=read.flag("Enabled", "Disabled", "persistence_mode"),
        power_limit_watts=read.number(
            ("W",),
            f"{power}/current_power_limit",
            "power_readings/enforced_power_limit",
            "power_readings/power_limit",
        ),
        power_default_limit_watts=read.number(
            ("W",), f"{power}/default_power_limit", "power_readings/default_power_limit"
        ),
        power_draw_watts=read.number(
            ("W",),
            f"{power}/power_draw",
            f"{power}/average_power_draw",
            f"{power}/instant_power_draw",
            "power_readings/power_draw",
        ),
        temperature_c=read.whole(("C",), "temperature/gpu_temp"),
        temperature_slowdown_c=read.whole(("C",), "temperature/gpu_temp_slow_threshold"),
        temperature_shutdown_c=read.whole(("C",), "temperature/gpu_temp_max_threshold"),
        temperature_margin_c=read.whole(("C",), "temperature/gpu_temp_tlimit"),
        performance_state=read.words("performance_state"),
        utilization_percent=read.whole(("%",), "utilization/gpu_util"),
        throttle_reasons=_throttle_reasons(read),
        pcie_generation=read.whole((), f"{link}pcie_gen/current_link_gen"),
        pcie_generation_max=read.whole((), f"{link}pcie_gen/max_link_gen"),
        pcie_generation_device_max=read.whole((), f"{link}pcie_gen/max_device_link_gen"),
        pcie_generation_host_max=read.whole((), f"{link}pcie_gen/max_host_link_gen"),
        pcie_width=read.whole(("x",), f"{link}link_widths/current_link_width"),
        pcie_width_max=read.whole(("x",), f"{link}link_widths/max_link_width"),
        fan_present=None if fan is None else not is_absent(fan),
        fan_percent=read.whole(("%",), "fan_speed"),
        display_active=read.flag("Enabled", "Disabled", "display_active"),
        processes=_processes(read),
        minor_number=read.whole((), "minor_number"),
        architecture=read.words("product_architecture"),
        virtualization=_lower(read.leaves.get("gpu_virtualization_mode/virtualization_mode")),
        recovery_action=_lower(read.leaves.get("gpu_recovery_action")),
        clock_sm_mhz=read.whole(("MHz",), "clocks/sm_clock"),
        clock_sm_max_mhz=read.whole(("MHz",), "max_clocks/sm_clock"),
        clock_memory_mhz=read.whole(("MHz",), "clocks/mem_clock"),
        clock_memory_max_mhz=read.whole(("MHz",), "max_clocks/mem_clock"),
    )


def _lower(text: str | None) -> str | None:
    """Modes of which "None" is one."""
    value = (text or "").strip().lower()
    return None if value in ("", "n/a", "not supported") else value


def _uncorrected(read: _Reader, period: str) -> int | None:
    """Double-bit errors up to Volta; from Turing on the sum of SRAM's and DRAM's uncorrectable."""
    base = f"ecc_errors/{period}"
    old = read.whole((), f"{base}/double_bit/total")
    if old is not None:
        return old
    parts = [
        read.whole((), f"{base}/{name}")
        for name in (
            "sram_uncorrectable",
            "sram_uncorrectable_parity",
            "sram_uncorrectable_secded",
            "dram_uncorrectable",
        )
    ]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _throttle_reasons(read: _Reader) -> tuple[str, ...]:
    active = []
    for path in read.leaves:
        match = _REASON.match(path) if path.startswith(_REASONS) else None
        if match and read.flag("Active", "Not Active", path):
            active.append(match.group(1))
    return tuple(active)


def _processes(read: _Reader) -> tuple[GpuProcess, ...]:
    found: dict[int, GpuProcess] = {}
    for element in read.element.findall("processes/process_info"):
        where = f"GPU {read.index}: process"
        pid = whole(element.findtext("pid"), (), where, read.doubts)
        if pid is None:
            read.doubts.add(where, "without a pid")
            continue
        name = (element.findtext("process_name") or "").strip()
        used = whole(element.findtext("used_memory"), ("MiB",), where, read.doubts)
        # A process with instances of MIG, or both of graphics and compute, is listed twice.
        before = found.get(pid)
        if before is not None and before.used_memory_mib is not None:
            used = before.used_memory_mib + (used or 0)
        found[pid] = GpuProcess(pid, name or "unknown", used)
    return tuple(found.values())
