"""What a host's hardware is, as typed values that carry no I/O: parsers make them, planning reads
them. Sizes are bytes except where nvidia-smi itself prints MiB; None means "was not told", never
zero and never a guess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LinkClass = Literal["X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS"]


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds GPU memory. `unit` is the systemd unit it runs in, if that is known."""

    pid: int
    name: str
    used_memory_mib: int | None = None
    unit: str | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU as `nvidia-smi -q -x` (or --query-gpu) describes it.

    index: as nvidia-smi numbers them, by PCI address. compute_capability: (8, 9). throttle_reasons:
    the active ones, in the new names without their prefix (hw_thermal_slowdown, sw_power_cap, ...).
    pcie_*_max is min(GPU, system), so it hides a bad slot. fan_percent: None with fan_present False
    is a passive card.
    """

    index: int
    name: str
    uuid: str | None = None
    pci_address: str | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    memory_reserved_mib: int | None = None
    compute_capability: tuple[int, int] | None = None
    ecc_enabled: bool | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    retired_pages_pending: bool | None = None
    remapped_rows_pending: bool | None = None
    remapped_rows_failed: bool | None = None
    mig_enabled: bool | None = None
    persistence_enabled: bool | None = None
    power_limit_watts: float | None = None
    power_default_limit_watts: float | None = None
    power_draw_watts: float | None = None
    temperature_c: int | None = None
    temperature_slowdown_c: int | None = None
    temperature_shutdown_c: int | None = None
    performance_state: str | None = None
    utilization_percent: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    fan_present: bool | None = None
    fan_percent: int | None = None
    display_active: bool | None = None
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True)
class DriverFailure:
    """nvidia-smi did not list GPUs. kind is what its text means; text is the line itself."""

    kind: Literal[
        "not-installed",
        "no-driver",
        "mismatch",
        "no-devices",
        "gpu-lost",
        "unknown-error",
        "no-library",
        "hang",
        "truncated",
        "unreadable",
    ]
    text: str
    pci_address: str | None = None


@dataclass(frozen=True)
class Topology:
    """`nvidia-smi topo -m`: links[i][j] is the class between GPU i and j ("NV4" keeps its count in
    nvlink_counts). numa_nodes[i]: the node of GPU i, None where it was N/A. cpu_affinity: Linux
    CPU lists as printed."""

    links: tuple[tuple[LinkClass, ...], ...] = ()
    nvlink_counts: tuple[tuple[int, ...], ...] = ()
    numa_nodes: tuple[int | None, ...] = ()
    cpu_affinity: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class NumaNode:
    node: int
    cpus: str
    memory_total_bytes: int | None = None


@dataclass(frozen=True)
class KernelEvent:
    """A kernel line about a GPU. code: the Xid number, None for other NVRM lines. seconds: since
    boot, None when the line has no time stamp."""

    text: str
    code: int | None = None
    pci_address: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Package:
    """An NVIDIA package on the host and what could change it under a running module."""

    name: str
    version: str
    held: bool = False
    upgradable_unattended: bool = False


@dataclass(frozen=True)
class Hardware:
    """Everything that was read of one host. unread: what could not be read, name -> why."""

    host: str
    gpus: tuple[Gpu, ...] = ()
    failure: DriverFailure | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    loaded_module_version: str | None = None
    cuda_compat_version: str | None = None
    topology: Topology | None = None
    cpu_model: str | None = None
    cpu_count: int | None = None
    numa: tuple[NumaNode, ...] = ()
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    disk_free_bytes: int | None = None
    kernel: str | None = None
    os_id: str | None = None
    os_version: str | None = None
    iommu_enabled: bool | None = None
    acs_enabled_bridges: tuple[str, ...] = ()
    kernel_events: tuple[KernelEvent, ...] = ()
    max_map_count: int | None = None
    max_map_count_file: str | None = None
    packages: tuple[Package, ...] = ()
    board_vendor: str | None = None
    board_name: str | None = None
    bmc_present: bool | None = None
    nvidia_smi_conf_present: bool | None = None
    pythons: tuple[str, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
