"""What surrounds the GPUs: PCIe isolation, kernel limits, disk and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.hardware_cooling import cooling_findings
from pyinfra_deploy.planning.hardware_packages import package_findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.facts.hardware import Hardware
    from pyinfra_deploy.settings.schema import Settings

GIB = 1024**3
# File systems that another machine serves.
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "lustre", "beegfs", "gpfs", "9p", "afs"}
)
_NCCL = "NCCL user guide, troubleshooting: PCI Access Control Services"


def host_findings(
    hardware: Hardware,
    settings: Settings,
    model_bytes: int | None,
    model_on_host: bool,
    uses_gpus: bool,
) -> Iterator[Finding]:
    yield from _unread(hardware)
    if uses_gpus:
        yield from _isolation(hardware, settings)
        yield from package_findings(hardware, settings)
        yield from cooling_findings(hardware, settings)
    yield from _map_count(hardware, settings)
    yield from _room(hardware, settings, model_bytes, model_on_host)
    yield from _file_system(hardware, settings)


def _unread(hardware: Hardware) -> Iterator[Finding]:
    """An unknown is said as one. Without nvidia-smi nothing is known at all: refused elsewhere."""
    unread = [
        (name, why)
        for name, why in hardware.unread
        if hardware.gpus or not name.startswith("nvidia-smi")
    ]
    if unread:
        yield Finding(
            "facts.unread",
            "warn",
            hardware.host,
            "facts",
            f"not all of the host could be read; what depends on it is not judged: "
            f"{', '.join(name for name, _ in unread)}",
            "mend what is named below and collect the facts again",
            evidence="; ".join(f"{name}: {why}" for name, why in unread[:6]),
            source="fleet facts collect",
        )


def _workers(settings: Settings) -> int:
    size = settings.engine.args.get("tensor-parallel-size", 1)
    return size if isinstance(size, int) else 1


def _has_nvlink(hardware: Hardware) -> bool:
    links = hardware.topology.links if hardware.topology is not None else ()
    return any(link == "NV" for row in links for link in row)


def _isolation(hardware: Hardware, settings: Settings) -> Iterator[Finding]:
    if _workers(settings) < 2 or _has_nvlink(hardware):
        return
    if hardware.acs_enabled_bridges:
        yield Finding(
            "pcie.acs-enabled",
            "warn",
            hardware.host,
            "PCIe bridges",
            "ACS is on between the GPUs, which have no NVLink: what they send to each other goes "
            "through the root complex, and NCCL is known to hang or crawl so",
            "switch ACS off in the BIOS, or for each bridge at boot: setpci -s BRIDGE "
            'ECAP_ACS+0x6.w=0000; as a stopgap set engine.env: {NCCL_P2P_DISABLE: "1"}',
            evidence=f"ACS on at {', '.join(hardware.acs_enabled_bridges[:6])}; "
            f"tensor-parallel-size {_workers(settings)}"
            + ("; IOMMU on" if hardware.iommu_enabled else ""),
            source=_NCCL,
        )
    elif hardware.iommu_enabled and hardware.iommu_passthrough is not True:
        yield Finding(
            "pcie.iommu-enabled",
            "warn",
            hardware.host,
            "IOMMU",
            "the IOMMU translates what the GPUs send to each other, which have no NVLink: NCCL is "
            "known to hang or crawl so",
            "add iommu=pt to the kernel's command line (or switch VT-d or AMD-Vi off in the BIOS) "
            'and reboot; as a stopgap set engine.env: {NCCL_P2P_DISABLE: "1"}',
            evidence=f"IOMMU on, not in passthrough; tensor-parallel-size {_workers(settings)}",
            source=_NCCL,
        )


def _map_count(hardware: Hardware, settings: Settings) -> Iterator[Finding]:
    found, wanted = hardware.max_map_count, settings.gpu_host.max_map_count
    if found is None or found >= wanted:
        return
    by = f" (set by {hardware.max_map_count_file})" if hardware.max_map_count_file else ""
    yield Finding(
        "host.max-map-count",
        "note",
        hardware.host,
        "vm.max_map_count",
        f"vm.max_map_count is {found}{by}; the deploy raises it to {wanted}",
        "nothing",
        evidence=f"vm.max_map_count = {found}",
        source="gpu_host.max_map_count; Documentation/admin-guide/sysctl/vm.rst",
    )


def _room(
    hardware: Hardware, settings: Settings, model_bytes: int | None, model_on_host: bool
) -> Iterator[Finding]:
    if model_bytes is None:
        return
    size = f"{model_bytes / GIB:.0f} GiB"
    free = hardware.disk_free_bytes
    if not model_on_host and free is not None and free < model_bytes:
        yield Finding(
            "disk.model",
            "refuse",
            hardware.host,
            f"disk of {settings.llm_root}",
            f"{free / GIB:.0f} GiB are free, and the model takes {size}",
            "free space there (models that no release uses any more), mount a larger disk, or set "
            "llm_root to a path on one",
            evidence=f"{free} bytes free, {model_bytes} bytes to pull",
            source="the hub's listing",
        )
    memory = hardware.memory_total_bytes
    if memory is not None and memory < model_bytes:
        yield Finding(
            "host.memory-below-model",
            "note",
            hardware.host,
            "memory",
            f"the host has {memory / GIB:.0f} GiB of memory for a model of {size}: the page cache "
            "cannot keep it, so each start reads it from disk again",
            "nothing; expect starts as long as the first one",
            evidence=f"MemTotal {memory} bytes",
            source="vLLM maps the weights' files while it loads",
        )


def _file_system(hardware: Hardware, settings: Settings) -> Iterator[Finding]:
    mount = hardware.llm_mount
    if mount is None:
        return
    subject = f"disk of {settings.llm_root}"
    evidence = f"{mount.device} on {mount.point} type {mount.kind} ({','.join(mount.options)})"
    if "noexec" in mount.options:
        yield Finding(
            "disk.noexec",
            "refuse",
            hardware.host,
            subject,
            f"{mount.point} is mounted noexec: the runtime's libraries cannot be loaded from there "
            "(failed to map segment from shared object)",
            f"take noexec out of {mount.point}'s line in /etc/fstab and run mount -o remount,exec "
            f"{mount.point}, or set llm_root to a path elsewhere",
            evidence=evidence,
            source="mount(8), noexec; mmap(2): PROT_EXEC on such a file system is EPERM",
        )
    if mount.kind in ("tmpfs", "ramfs"):
        yield Finding(
            "disk.volatile",
            "warn",
            hardware.host,
            subject,
            f"{mount.point} is kept in memory: models, runtimes and releases are gone after a "
            "reboot, and take memory until then",
            "mount a disk there, or set llm_root to a path on one",
            evidence=evidence,
            source="tmpfs(5)",
        )
    elif mount.kind in _NETWORK or mount.kind.startswith("fuse."):
        yield Finding(
            "disk.network",
            "warn",
            hardware.host,
            subject,
            f"{mount.point} is a network file system ({mount.kind}): each start reads all weights "
            "over the network, and while its server is away nothing starts",
            "a local disk for llm_root; models can be shared by a mirror of the hub instead",
            evidence=evidence,
            source="vLLM maps the weights' files while it loads",
        )
