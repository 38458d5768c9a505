"""Bad states of a host's GPUs, as data: a new state is a new entry.

about     one line for `lab gpu`
says      nvidia-smi prints this, whatever it was asked, and exits with `exit`
cards     slot -> properties that differ from a healthy card's
missing   slots whose card the driver no longer lists (the others move up, as after a reboot)
hangs     nvidia-smi never returns and ignores SIGTERM, as with a driver stuck in the kernel
cut       nvidia-smi -q -x ends in the middle of a card
held      slot -> memory that a process outside our units holds: the one that asks, since a card
          that is not there has no other
driver    version of the driver, `cuda` that of its CUDA
loaded    version of the loaded kernel module where it is not the driver's, "" for none
kernel    lines of the kernel log; {driver} is the loaded version

Texts and exit statuses are those of nvidia-smi (its manual page, RETURN VALUE; NVML's error texts).
Kernel lines have the shapes of NVIDIA's catalogue of Xid errors.
"""

from __future__ import annotations

from typing import TypedDict


class State(TypedDict, total=False):
    about: str
    says: str
    exit: int
    cards: dict[int, dict[str, str]]
    missing: list[int]
    hangs: bool
    cut: bool
    held: dict[int, str]
    driver: str
    cuda: str
    loaded: str
    kernel: list[str]


HEALTHY = "ok"
# A card at work: its link is up, so that width and generation can be judged.
_BUSY = {
    "pstate": "P0",
    "utilization.gpu": "97 %",
    "power.draw": "284.10 W",
    "clocks.current.graphics": "2490 MHz",
    "clocks.current.sm": "2490 MHz",
    "clocks.current.memory": "9001 MHz",
    "pcie.link.gen.current": "4",
    "clocks_event_reasons.active": "0x0000000000000000",
    "clocks_event_reasons.gpu_idle": "Not Active",
}
_L40S = {
    "name": "NVIDIA L40S",
    "pci.device_id": "0x26B910DE",
    "pci.sub_device_id": "0x185110DE",
}
_SEES_NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n\n"
)

STATES: dict[str, State] = {
    HEALTHY: {"about": "eight healthy, idle cards"},
    "no-driver": {
        "about": "the kernel module is not loaded",
        "says": _SEES_NO_DRIVER,
        "exit": 9,
        "loaded": "",
    },
    "mismatch": {
        "about": "the library was upgraded under the loaded kernel module",
        "says": "Failed to initialize NVML: Driver/library version mismatch\n"
        "NVML library version: 580.105\n",
        "exit": 18,
        "driver": "580.105.08",
        "loaded": "580.95.05",
        "kernel": [
            "NVRM: API mismatch: the client has the version 580.105.08, but",
            "NVRM: this kernel module has the version 580.95.05.  Please",
            "NVRM: make sure that this kernel module and all NVIDIA driver",
            "NVRM: components have the same version.",
        ],
    },
    "lost": {
        "about": "a card has fallen off the bus (Xid 79)",
        "says": "Unable to determine the device handle for GPU 0000:38:00.0: GPU is lost.  "
        "Reboot the system to recover this GPU\n",
        "exit": 15,
        "kernel": [
            "NVRM: Xid (PCI:0000:38:00): 79, pid='<unknown>', name=<unknown>, "
            "GPU has fallen off the bus.",
            "NVRM: GPU 0000:38:00.0: GPU has fallen off the bus.",
        ],
    },
    "unknown-error": {
        "about": "a card answers nothing any more",
        "says": "Unable to determine the device handle for GPU0000:A8:00.0: Unknown Error\n",
        "exit": 255,
    },
    "none": {"about": "no card is found", "says": "No devices were found\n", "exit": 6},
    "no-library": {
        "about": "libnvidia-ml.so cannot be loaded",
        "says": "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure "
        "that the NVIDIA Display Driver is properly installed and present in your system.\n"
        "Please also try adding directory that contains libnvidia-ml.so to your system PATH.\n",
        "exit": 12,
        "loaded": "",
    },
    "fans": {
        "about": "cards with fans of their own",
        "cards": {slot: {"fan.speed": "30 %"} for slot in range(8)},
    },
    "hang": {"about": "nvidia-smi never returns", "hangs": True},
    "cut": {"about": "nvidia-smi -q -x ends in the middle", "cut": True},
    "old-driver": {
        "about": "a driver that is too old for CUDA 13",
        "driver": "535.274.02",
        "cuda": "12.2",
    },
    "older-driver": {
        "about": "a driver that is too old for CUDA 12",
        "driver": "470.256.02",
        "cuda": "11.4",
    },
    "seven": {"about": "one card is missing since the last boot", "missing": [5]},
    "fallen-off": {
        "about": "one card has fallen off the bus, and the others are listed",
        "missing": [5],
        "kernel": [
            "NVRM: Xid (PCI:0000:a8:00): 79, pid='<unknown>', name=<unknown>, "
            "GPU has fallen off the bus."
        ],
    },
    "gsp": {
        "about": "a card's firmware did not answer in time (Xid 119)",
        "kernel": [
            "NVRM: Xid (PCI:0000:98:00): 119, pid=2417, name=python3, Timeout after 45s of waiting "
            "for RPC response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL)."
        ],
    },
    "app-error": {
        "about": "a program used memory that was not its own (Xid 31)",
        "kernel": [
            "NVRM: Xid (PCI:0000:16:00): 31, pid=2417, name=python3, Ch 00000008, intr 10000000. "
            "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f1c_4e000000."
        ],
    },
    "narrow": {
        "about": "one card's link has x4 instead of x16, under load",
        "cards": {2: {**_BUSY, "pcie.link.width.current": "4"}},
    },
    "half": {
        "about": "one card's link has x8 instead of x16, under load",
        "cards": {2: {**_BUSY, "pcie.link.width.current": "8"}},
    },
    "slow-memory": {
        "about": "one card's memory stays at its idle clock, under load",
        "cards": {2: {**_BUSY, "clocks.current.memory": "405 MHz"}},
    },
    "slot": {
        "about": "one card's slot gives x8, so that the maximum is no better",
        "cards": {2: {"pcie.link.width.current": "8", "pcie.link.width.max": "8"}},
    },
    "narrow-idle": {
        "about": "one card's link has x4 while it is idle",
        "cards": {2: {"pcie.link.width.current": "4"}},
    },
    "hot": {
        "about": "one card slows down for heat",
        "cards": {
            6: {
                "temperature.gpu": "91",
                **_BUSY,
                "clocks.current.graphics": "765 MHz",
                "clocks.current.sm": "765 MHz",
                "clocks_event_reasons.active": "0x0000000000000068",
                "clocks_event_reasons.hw_slowdown": "Active",
                "clocks_event_reasons.hw_thermal_slowdown": "Active",
                "clocks_event_reasons.sw_thermal_slowdown": "Active",
            }
        },
    },
    "ecc": {
        "about": "one card has uncorrected memory errors",
        "cards": {
            1: {
                "ecc.errors.uncorrected.volatile.total": "3",
                "ecc.errors.uncorrected.aggregate.total": "3",
            }
        },
    },
    "retirement": {
        "about": "a bad page of one card is retired at the next reset",
        "cards": {1: {"retired_pages.pending": "Yes"}},
    },
    "remap": {
        "about": "a bad row of one card is remapped at the next reset",
        "cards": {1: {"remapped_rows.pending": "Yes", "remapped_rows.uncorrectable": "1"}},
    },
    "remap-failed": {
        "about": "a bad row of one card cannot be remapped",
        "cards": {1: {"remapped_rows.failure": "Yes", "remapped_rows.uncorrectable": "8"}},
    },
    "brake": {
        "about": "the server's power supply slows one card down",
        "cards": {
            6: {
                **_BUSY,
                "clocks.current.graphics": "630 MHz",
                "clocks.current.sm": "630 MHz",
                "clocks_event_reasons.active": "0x0000000000000088",
                "clocks_event_reasons.hw_slowdown": "Active",
                "clocks_event_reasons.hw_power_brake_slowdown": "Active",
            }
        },
    },
    "warm": {"about": "one card is near its threshold", "cards": {6: {"temperature.gpu": "87"}}},
    "limited": {
        "about": "one card's power limit is below its default",
        "cards": {3: {"power.limit": "275.00 W", "enforced.power.limit": "275.00 W"}},
    },
    "mig": {
        "about": "one card is in MIG mode",
        "cards": {2: {"mig.mode.current": "Enabled", "mig.mode.pending": "Enabled"}},
    },
    "mixed": {"about": "one card is of another model", "cards": {3: _L40S}},
    "other-model": {
        "about": "all cards are of another model",
        "cards": dict.fromkeys(range(8), _L40S),
    },
    "display": {
        "about": "a display runs on one card",
        "cards": {0: {"display_active": "Enabled"}},
    },
    "orphan": {
        "about": "a process outside our units holds most of one card's memory",
        "held": {3: "40213 MiB"},
    },
    "busy": {
        "about": "somebody whom nvidia-smi does not name holds memory of one card",
        "cards": {
            0: {
                "memory.used": "40213 MiB",
                "memory.free": "5260 MiB",
                **_BUSY,
                "utilization.gpu": "37 %",
            }
        },
    },
    "no-persistence": {
        "about": "persistence mode is off",
        "cards": {slot: {"persistence_mode": "Disabled"} for slot in range(8)},
    },
}
