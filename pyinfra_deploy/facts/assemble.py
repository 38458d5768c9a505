"""Raw outputs of one host -> Hardware. What cannot be read is in `unread`, with the reason."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyinfra_deploy.facts import (
    apt_packages,
    host_parts,
    kernel_log,
    nvidia_csv,
    nvidia_versions,
    nvidia_xml,
    pci,
    processes,
    raw,
    topology,
)
from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.hardware import DriverFailure, Gpu, Hardware, NumaNode
from pyinfra_deploy.facts.nvidia_failure import failure_of_run, library_version_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyinfra_deploy.facts.raw import RawOutput

Parsed = TypeVar("Parsed")

BMC = "/dev/ipmi"
SMI_CONF = "/etc/nvidia/nvidia-smi.conf"
PERSISTENCED = "/usr/bin/nvidia-persistenced"
# Where these are the failure, that there is no module to read is the same one.
_WITHOUT_MODULE = ("not-installed", "no-library", "no-driver")
_PYTHON = re.compile(r"/bin/python3\.\d+$")


class _Outputs:
    """The outputs of a host, and what could not be read of them."""

    def __init__(self, raw_outputs: Mapping[str, RawOutput]) -> None:
        self.raw = raw_outputs
        self.unread: dict[str, str] = {}

    def note(self, name: str, why: str) -> None:
        before = self.unread.get(name)
        self.unread[name] = f"{before}; {why}" if before else why

    def text(self, name: str) -> str | None:
        """The output; None, with the reason noted, when it is missing or its command failed."""
        output = self.raw.get(name)
        if output is None:
            self.note(name, "was not collected")
            return None
        if output.exit:
            said = " ".join((output.stderr.strip() or output.text.strip())[-300:].split())
            self.note(name, f"failed with exit status {output.exit}: {said or 'without a word'}")
            return None
        return output.text

    def parsed(self, name: str, parse: Callable[[str], Parsed]) -> Parsed | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return cast("Parsed", _parsed(parse, text))
        except UnreadableOutput as error:
            self.note(name, str(error))
            return None


@lru_cache(maxsize=2048)
def _parsed(parse: Callable[[str], object], text: str) -> object:
    """Of equal hosts many outputs are the same: packages, CPUs, the topology."""
    return parse(text)


def assemble(
    host: str, raw_outputs: Mapping[str, RawOutput], llm_root: str = "/srv/llm"
) -> Hardware:
    """What the outputs tell of the host. Never raises for what is in them.

    llm_root: the directory whose file system disk_free_bytes is about.
    """
    outputs = _Outputs(raw_outputs)
    values: dict[str, Any] = {}
    values |= _gpus(outputs)
    values |= _driver(outputs, values)
    values |= _bus(outputs)
    values |= _machine(outputs, llm_root)
    values |= _kernel(outputs)
    values |= _packages(outputs)
    values["gpus"] = _with_host_facts(outputs, values)
    return Hardware(host=host, unread=tuple(outputs.unread.items()), **values)


def _gpus(outputs: _Outputs) -> dict[str, Any]:
    """GPUs from the XML, completed from --query-gpu, which stands in where the XML is missing."""
    report, failure = _smi_report(outputs)
    query = outputs.parsed(raw.SMI_QUERY, nvidia_csv.parse_query_gpu)
    others: tuple[Gpu, ...] = ()
    driver = None
    if query:
        others, driver, doubts = query
        for where, why in doubts:
            outputs.note(raw.SMI_QUERY, f"{where} {why}")
    elif failure is not None:
        # One cause is enough: the other calls fail of the same.
        outputs.unread.pop(raw.SMI_QUERY, None)
    gpus = nvidia_csv.fill(report.gpus, others) if report else others
    if report is None and others:
        outputs.note(raw.SMI_XML, "GPUs are known from --query-gpu only")
        gpus = _without_xml(outputs, gpus)
        failure = (
            None if failure is None or failure.kind in ("truncated", "unreadable") else failure
        )
    return {
        "gpus": gpus,
        "failure": failure,
        "attached_gpus": report.attached_gpus if report else None,
        "driver_version": (report.driver_version if report else None) or driver,
        "cuda_version": report.cuda_version if report else None,
    }


def _without_xml(outputs: _Outputs, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs with what queries of their own tell: remapped rows, processes."""
    rows = outputs.parsed(raw.SMI_REMAPPED, nvidia_csv.parse_remapped_rows) or {}
    apps = outputs.parsed(raw.SMI_APPS, nvidia_csv.parse_compute_apps) or {}
    found = []
    for gpu in gpus:
        pending, failed = rows.get(gpu.uuid or "", (None, None))
        found.append(
            replace(
                gpu,
                remapped_rows_pending=pending,
                remapped_rows_failed=failed,
                processes=apps.get(gpu.uuid or "", ()),
            )
        )
    return tuple(found)


def _smi_report(outputs: _Outputs) -> tuple[nvidia_xml.SmiReport | None, DriverFailure | None]:
    output = outputs.raw.get(raw.SMI_XML)
    if output is None:
        outputs.note(raw.SMI_XML, "was not collected")
        query = outputs.raw.get(raw.SMI_QUERY)
        failed = failure_of_run(query.text, query.exit, query.stderr) if query else None
        return None, failed
    try:
        report = nvidia_xml.parse_smi_xml(output.text)
    except UnreadableOutput as error:
        failure = failure_of_run(output.text, output.exit, output.stderr)
        if failure is None:
            cut = isinstance(error, nvidia_xml.CutShort)
            said = output.stderr.strip()[-200:]
            text = f"{error}; {said}" if said else str(error)
            failure = DriverFailure("truncated" if cut else "unreadable", text)
        outputs.note(raw.SMI_XML, failure.text)
        return None, failure
    for where, why in report.doubts:
        outputs.note(raw.SMI_XML, f"{where} {why}")
    failure = report.failure
    if output.exit and failure is None:
        failure = failure_of_run("", output.exit, output.stderr)
        outputs.note(raw.SMI_XML, f"nvidia-smi ended with exit status {output.exit}")
    return report, failure


def _driver(outputs: _Outputs, known: dict[str, Any]) -> dict[str, Any]:
    loaded = outputs.parsed(raw.MODULE_LOADED, nvidia_versions.parse_module_version)
    installed = outputs.parsed(raw.MODULE_INSTALLED, nvidia_versions.parse_modinfo)
    versions = outputs.parsed(raw.SMI_VERSION, nvidia_versions.parse_smi_version)
    paths = outputs.parsed(raw.PATHS, host_parts.parse_paths)
    library = nvidia_versions.library_version(paths) if paths else None
    smi = outputs.raw.get(raw.SMI_XML)
    driver, cuda = versions or (None, None)
    return {
        "driver_version": known["driver_version"] or driver,
        "cuda_version": known["cuda_version"] or cuda,
        "loaded_module_version": loaded[0] if loaded else None,
        "open_kernel_module": loaded[1] if loaded else None,
        "installed_module_version": installed,
        "library_version": library or (library_version_in(smi.text + smi.stderr) if smi else None),
        "bmc_present": None if paths is None else any(path.startswith(BMC) for path in paths),
        "nvidia_smi_conf_present": None if paths is None else SMI_CONF in paths,
        "persistenced_installed": None if paths is None else PERSISTENCED in paths,
        "pythons": tuple(path for path in paths or () if _PYTHON.search(path)),
    }


def _bus(outputs: _Outputs) -> dict[str, Any]:
    found = outputs.parsed(raw.PCI_GPUS, pci.parse_pci_gpus)
    acs = outputs.parsed(raw.ACS, pci.parse_acs)
    groups, cmdline = outputs.text(raw.IOMMU_GROUPS), outputs.text(raw.CMDLINE)
    enabled, passthrough = pci.iommu_state(groups, cmdline)
    above = found[1] if found else None
    return {
        "pci_gpus": found[0] if found else None,
        "acs_enabled_bridges": tuple(
            bridge for bridge in acs or () if above is None or bridge in above
        ),
        "iommu_enabled": enabled,
        "iommu_passthrough": passthrough,
    }


def _machine(outputs: _Outputs, llm_root: str) -> dict[str, Any]:
    model, cpus, nodes = outputs.parsed(raw.LSCPU, host_parts.parse_lscpu) or (None, None, ())
    memory = outputs.parsed(raw.MEMINFO, host_parts.parse_meminfo)
    free = outputs.parsed(raw.DF, host_parts.parse_df)
    system = outputs.parsed(raw.OS_RELEASE, host_parts.parse_os_release)
    dmi = outputs.parsed(raw.DMI, host_parts.parse_dmi) or {}
    sized = outputs.parsed(raw.NUMA, host_parts.parse_numa_nodes)
    disk = host_parts.free_under(free, llm_root) if free else None
    if free and disk is None:
        outputs.note(raw.DF, f"lists no file system that {llm_root} is on")
    mounts = outputs.parsed(raw.MOUNTS, host_parts.parse_mounts)
    return {
        "llm_mount": host_parts.mount_of(mounts, llm_root) if mounts else None,
        "cpu_model": model,
        "cpu_count": cpus,
        "numa": _merged_nodes(nodes, sized or ()),
        "memory_total_bytes": memory[0] if memory else None,
        "memory_available_bytes": memory[1] if memory else None,
        "disk_free_bytes": disk,
        "os_id": system[0] if system else None,
        "os_version": system[1] if system else None,
        "board_vendor": dmi.get("board_vendor"),
        "board_name": dmi.get("board_name"),
        "system_vendor": dmi.get("sys_vendor"),
        "system_name": dmi.get("product_name"),
    }


def _merged_nodes(
    listed: tuple[NumaNode, ...], sized: tuple[NumaNode, ...]
) -> tuple[NumaNode, ...]:
    """lscpu's nodes with the memory that /sys or numactl tells; the latter alone where it has more
    (nodes without CPUs)."""
    by_number = {node.node: node for node in listed}
    for node in sized:
        cpus = node.cpus or (by_number[node.node].cpus if node.node in by_number else "")
        by_number[node.node] = replace(node, cpus=cpus)
    return tuple(by_number[number] for number in sorted(by_number))


def _kernel(outputs: _Outputs) -> dict[str, Any]:
    events, unreadable = outputs.parsed(raw.KERNEL_LOG, kernel_log.parse_kernel_log) or ((), ())
    for line in unreadable:
        outputs.note(raw.KERNEL_LOG, f"an Xid line cannot be read: {line[:120]}")
    files = outputs.text(raw.SYSCTL_FILES)
    uname = outputs.raw.get(raw.UNAME)
    return {
        "kernel": outputs.parsed(raw.UNAME, host_parts.parse_uname),
        "machine": host_parts.parse_machine(uname.text) if uname and not uname.exit else None,
        "kernel_events": events,
        "max_map_count": outputs.parsed(raw.MAX_MAP_COUNT, host_parts.parse_max_map_count),
        "max_map_count_file": host_parts.max_map_count_file(files) if files else None,
    }


def _packages(outputs: _Outputs) -> dict[str, Any]:
    installed = outputs.parsed(raw.DPKG, apt_packages.parse_dpkg)
    if installed is None:
        return {"packages": (), "cuda_compat_version": None}
    release = outputs.raw.get(raw.OS_RELEASE)
    codename, distribution = host_parts.codename_of(release.text if release else "")
    unattended = outputs.parsed(
        raw.APT_CONFIG, lambda text: apt_packages.parse_apt_config(text, codename, distribution)
    )
    packages = apt_packages.judge(
        apt_packages.nvidia_packages(installed),
        outputs.parsed(raw.HOLDS, apt_packages.parse_holds) or frozenset(),
        unattended,
        "unattended-upgrades" in installed,
        outputs.parsed(raw.APT_POLICY, apt_packages.parse_policy),
    )
    return {"packages": packages, "cuda_compat_version": apt_packages.compat_version(packages)}


def _with_host_facts(outputs: _Outputs, values: dict[str, Any]) -> tuple[Gpu, ...]:
    """The GPUs with their NUMA node and their processes' units; and the topology, on the way."""
    gpus: tuple[Gpu, ...] = values["gpus"]
    found = outputs.parsed(raw.SMI_TOPOLOGY, topology.parse_topology)
    if values["failure"] is not None and found is None:
        gone = [raw.SMI_TOPOLOGY, raw.SMI_VERSION]
        if values["failure"].kind in _WITHOUT_MODULE:
            gone += [raw.MODULE_LOADED, raw.MODULE_INSTALLED]
        for name in gone:
            outputs.unread.pop(name, None)
    if found is not None and gpus and len(found.links) != len(gpus):
        outputs.note(
            raw.SMI_TOPOLOGY, f"it has {len(found.links)} GPUs, but {len(gpus)} are described"
        )
        found = None
    values["topology"] = found
    nodes = {gpu.address: gpu.numa_node for gpu in values["pci_gpus"] or ()}
    gpus = tuple(
        gpu if node is None else replace(gpu, numa_node=node)
        for gpu in gpus
        for node in (nodes.get(gpu.pci_address or ""),)
    )
    units = outputs.parsed(raw.PROCESSES, processes.parse_processes)
    return processes.with_units(gpus, units) if units else gpus
