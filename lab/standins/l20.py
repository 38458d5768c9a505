"""Eight NVIDIA L20 in a two-socket server, as nvidia-smi would describe them.

Shapes follow recorded outputs of driver 565-595 on L40S and A5000; the values are the lab's own.
Where a value stands for a property of the L20 it is: 46068 MiB with ECC on, 350 W, compute
capability 8.9, no fan of its own, PCIe 4.0 x16, no NVLink.
"""

from __future__ import annotations

import zlib

# New enough for the CUDA 13 of the production inventory.
DRIVER = "580.95.05"
CUDA = "13.0"
PRODUCT = "NVIDIA L20"
BUSES = ("16", "27", "38", "5A", "98", "A8", "B8", "D8")
CPU_AFFINITY = ("0-31,64-95", "32-63,96-127")
NICS = ("mlx5_0", "mlx5_1")

Gpu = dict[str, str]
"""Name of a --query-gpu property -> value with its unit ("46068 MiB", "[N/A]")."""

EVENT_REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
)

# Properties that every card shares: idle, healthy.
COMMON: Gpu = {
    "driver_version": DRIVER,
    "name": PRODUCT,
    "vbios_version": "95.02.53.00.08",
    "pci.domain": "0x0000",
    "pci.device": "0x00",
    "pci.device_id": "0x26BA10DE",
    "pci.sub_device_id": "0x195710DE",
    "pstate": "P8",
    "fan.speed": "[N/A]",
    "temperature.gpu": "34",
    "temperature.memory": "[N/A]",
    "memory.total": "46068 MiB",
    "memory.reserved": "596 MiB",
    "memory.used": "1 MiB",
    "memory.free": "45472 MiB",
    "utilization.gpu": "0 %",
    "utilization.memory": "0 %",
    "compute_mode": "Default",
    "compute_cap": "8.9",
    "persistence_mode": "Enabled",
    "mig.mode.current": "[N/A]",
    "mig.mode.pending": "[N/A]",
    "ecc.mode.current": "Enabled",
    "ecc.mode.pending": "Enabled",
    "ecc.errors.corrected.volatile.total": "0",
    "ecc.errors.uncorrected.volatile.total": "0",
    "ecc.errors.corrected.aggregate.total": "0",
    "ecc.errors.uncorrected.aggregate.total": "0",
    "power.draw": "36.42 W",
    "power.limit": "350.00 W",
    "enforced.power.limit": "350.00 W",
    "power.default_limit": "350.00 W",
    "power.min_limit": "100.00 W",
    "power.max_limit": "350.00 W",
    "clocks.current.graphics": "210 MHz",
    "clocks.current.sm": "210 MHz",
    "clocks.current.memory": "405 MHz",
    "clocks.current.video": "1185 MHz",
    "clocks.max.graphics": "2520 MHz",
    "clocks.max.sm": "2520 MHz",
    "clocks.max.memory": "9001 MHz",
    "pcie.link.gen.current": "1",
    "pcie.link.gen.max": "4",
    "pcie.link.gen.gpumax": "4",
    "pcie.link.gen.hostmax": "5",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "display_active": "Disabled",
    "display_mode": "Disabled",
    "accounting.mode": "Disabled",
    "addressing_mode": "None",
    "gpu_recovery_action": "None",
    "retired_pages.pending": "[N/A]",
    "remapped_rows.correctable": "0",
    "remapped_rows.uncorrectable": "0",
    "remapped_rows.pending": "No",
    "remapped_rows.failure": "No",
    "clocks_event_reasons.supported": "0x00000000000001FF",
    "clocks_event_reasons.active": "0x0000000000000001",
    **{f"clocks_event_reasons.{reason}": "Not Active" for reason in EVENT_REASONS},
    "clocks_event_reasons.gpu_idle": "Active",
}


def uuid_of(host: str, index: int) -> str:
    """A UUID that is stable for a host's card and differs between hosts."""
    words = [zlib.crc32(f"{host} gpu {index} {part}".encode()) for part in range(4)]
    digits = "".join(f"{word:08x}" for word in words)
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def card(host: str, slot: int) -> Gpu:
    """The card in one of the slots 0-7; the same one whatever index it has."""
    serial = 1320000000000 + zlib.crc32(f"{host} serial {slot}".encode()) % 1000000000
    return {
        **COMMON,
        "uuid": uuid_of(host, slot),
        "serial": str(serial),
        "pci.bus": f"0x{BUSES[slot]}",
        "pci.bus_id": f"00000000:{BUSES[slot]}:00.0",
        "temperature.gpu": str(33 + (slot * 3) % 5),
        "slot": str(slot),
    }


def numa_node(slot: int) -> int:
    return 0 if slot < 4 else 1


def link_between(one: int, other: int) -> str:
    """Class of the path between two slots: pairs under one switch, two sockets of four."""
    if one == other:
        return " X "
    if numa_node(one) != numa_node(other):
        return "SYS"
    return "PIX" if one // 2 == other // 2 else "NODE"
