"""What a host's hardware is, as typed values that carry no I/O: parsers make them, planning reads
them. Sizes are bytes except where nvidia-smi itself prints MiB; None means "was not told", never
zero and never a guess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FailureKind = Literal[
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
LinkClass = Literal["X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS"]


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds GPU memory. `unit` is the systemd unit it runs in, "" for one outside
    every unit, None where that was not found out."""

    pid: int
    name: str
    used_memory_mib: int | None = None
    unit: str | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU as `nvidia-smi -q -x` (or --query-gpu) describes it.

    index: as nvidia-smi numbers them, by PCI address. pci_address: as sysfs writes it,
    "0000:3b:00.0". compute_capability: (8, 9). throttle_reasons: the active ones, in the new names
    without their prefix (hw_thermal_slowdown, sw_power_cap, ...). pcie_*_max is min(GPU, system),
    so it hides a bad slot; pcie_generation_device_max is the GPU's own. fan_percent: None with
    fan_present False is a passive card. temperature_margin_c: degrees left to slowdown, which newer
    cards report in place of the thresholds. virtualization: "none", "pass-through", "vgpu", ...
    recovery_action: what the driver asks for ("none", "reset", "reboot", "drain p2p", ...).
    numa_node: of /sys, None where the kernel knows none.
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
    minor_number: int | None = None
    architecture: str | None = None
    virtualization: str | None = None
    recovery_action: str | None = None
    temperature_margin_c: int | None = None
    pcie_generation_device_max: int | None = None
    pcie_generation_host_max: int | None = None
    clock_sm_mhz: int | None = None
    clock_sm_max_mhz: int | None = None
    clock_memory_mhz: int | None = None
    clock_memory_max_mhz: int | None = None
    numa_node: int | None = None


@dataclass(frozen=True)
class PciGpu:
    """An NVIDIA display or 3D controller on the PCI bus, whether or not the driver knows it.

    kernel_driver: what the kernel bound to it ("nvidia", "nouveau", "vfio-pci"), None for nothing.
    link_width and link_width_max: of the device, from /sys; 0 there means no link and is None.
    """

    address: str
    kernel_driver: str | None = None
    numa_node: int | None = None
    link_width: int | None = None
    link_width_max: int | None = None


@dataclass(frozen=True)
class DriverFailure:
    """nvidia-smi did not list GPUs. kind is what its text means; text is the line itself."""

    kind: FailureKind
    text: str
    pci_address: str | None = None


@dataclass(frozen=True)
class Topology:
    """`nvidia-smi topo -m`: links[i][j] is the class between GPU i and j ("NV4" keeps its count in
    nvlink_counts). numa_nodes[i]: the node of GPU i, None where it was N/A or several.
    cpu_affinity: Linux CPU lists as printed, None where the cell was empty."""

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
class Mount:
    """A mounted file system: "/srv", "/dev/md0", "ext4", ("rw", "noatime")."""

    point: str
    device: str
    kind: str
    options: tuple[str, ...] = ()


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
    """An NVIDIA package on the host and what could change it under a running module.

    upgradable_unattended: unattended-upgrades runs and takes it from one of its origins; None where
    that could not be found out.
    """

    name: str
    version: str
    held: bool = False
    upgradable_unattended: bool | None = None


@dataclass(frozen=True)
class Hardware:
    """Everything that was read of one host. unread: what could not be read, name -> why.

    attached_gpus: how many nvidia-smi counts, also where it describes fewer. pci_gpus: what the PCI
    bus has, whatever the driver says; None where that was not read. driver_version: of the driver
    that answered nvidia-smi; loaded_module_version: of the loaded kernel module; library_version:
    of the installed libnvidia-ml; installed_module_version: of the module that the next boot loads.
    cuda_compat_version: the newest CUDA version that an installed cuda-compat package brings,
    "13.0". acs_enabled_bridges: bridges with ACS on, those above GPUs where paths are known.
    disk_free_bytes, llm_mount: where models go. persistenced_installed:
    /usr/bin/nvidia-persistenced is there. machine: the processor's architecture as uname names it,
    "x86_64".
    """

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
    attached_gpus: int | None = None
    pci_gpus: tuple[PciGpu, ...] | None = None
    library_version: str | None = None
    installed_module_version: str | None = None
    open_kernel_module: bool | None = None
    iommu_passthrough: bool | None = None
    system_vendor: str | None = None
    system_name: str | None = None
    persistenced_installed: bool | None = None
    machine: str | None = None
    llm_mount: Mount | None = None
