"""Bad states of a host's GPUs, as data: a new state is a new entry.

about     one line for `lab gpu`
says      nvidia-smi prints this, whatever it was asked, and exits with `exit`
cards     slot -> properties that differ from a healthy card's
missing   slots whose card the driver no longer lists (the others move up, as after a reboot)
hangs     nvidia-smi never returns and ignores SIGTERM, as with a driver stuck in the kernel

Texts and exit statuses are those of nvidia-smi (its manual page, RETURN VALUE; NVML's error texts).
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


HEALTHY = "ok"
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
    },
    "mismatch": {
        "about": "the library was upgraded under the loaded kernel module",
        "says": "Failed to initialize NVML: Driver/library version mismatch\n"
        "NVML library version: 570.172\n",
        "exit": 18,
    },
    "lost": {
        "about": "a card has fallen off the bus (Xid 79)",
        "says": "Unable to determine the device handle for GPU 0000:38:00.0: GPU is lost.  "
        "Reboot the system to recover this GPU\n",
        "exit": 15,
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
    },
    "hang": {"about": "nvidia-smi never returns", "hangs": True},
    "seven": {"about": "one card is missing since the last boot", "missing": [5]},
    "narrow": {
        "about": "one card's link has x4 instead of x16",
        "cards": {2: {"pcie.link.width.current": "4"}},
    },
    "hot": {
        "about": "one card slows down for heat",
        "cards": {
            6: {
                "temperature.gpu": "91",
                "pstate": "P0",
                "utilization.gpu": "100 %",
                "power.draw": "211.87 W",
                "clocks.current.graphics": "765 MHz",
                "clocks.current.sm": "765 MHz",
                "pcie.link.gen.current": "4",
                "clocks_event_reasons.active": "0x0000000000000068",
                "clocks_event_reasons.gpu_idle": "Not Active",
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
    "busy": {
        "about": "another process holds memory on one card",
        "cards": {
            0: {
                "memory.used": "40213 MiB",
                "memory.free": "5260 MiB",
                "pstate": "P0",
                "utilization.gpu": "37 %",
                "pcie.link.gen.current": "4",
                "clocks_event_reasons.active": "0x0000000000000000",
                "clocks_event_reasons.gpu_idle": "Not Active",
            }
        },
    },
    "no-persistence": {
        "about": "persistence mode is off",
        "cards": {slot: {"persistence_mode": "Disabled"} for slot in range(8)},
    },
}
