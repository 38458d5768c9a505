"""Heat and power: what slows a GPU down, and how near it is to that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.gpu_table import is_passive, named, of_each, which

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.facts.hardware import Gpu, Hardware

_REASONS = "nvidia-smi(1), clocks event reasons; nvml.h"
# Degrees left to the slowdown threshold of which a warm day or a dead fan takes all.
_NEAR_SLOWDOWN_C = 5
_BUSY_PERCENT = 5
# In P0 the memory is at its maximum, or a few MHz beside it (recorded: 3003 of 3004); the steps
# below are half of it and less.
_SLOW_MEMORY = 0.75


def heat_findings(hardware: Hardware) -> Iterator[Finding]:
    """The strongest sign of heat counts; a card that slows down is also near its threshold."""
    hardware_slows = which(hardware, lambda gpu: "hw_thermal_slowdown" in gpu.throttle_reasons)
    software_slows = which(
        hardware,
        lambda gpu: "sw_thermal_slowdown" in gpu.throttle_reasons and gpu not in hardware_slows,
    )
    if hardware_slows:
        yield Finding(
            "gpu.thermal-slowdown",
            "refuse",
            hardware.host,
            named(hardware_slows),
            "the GPU slows itself down to half or less because it is too hot; an engine over all "
            "GPUs goes at the pace of this one",
            _cooling_fix(hardware_slows),
            evidence=of_each(hardware_slows, _temperature),
            source=_REASONS,
        )
    if software_slows:
        yield Finding(
            "gpu.thermal-limit",
            "warn",
            hardware.host,
            named(software_slows),
            "the driver lowers the GPU's clocks because it is hot",
            _cooling_fix(software_slows),
            evidence=of_each(software_slows, _temperature),
            source=_REASONS,
        )
    near = which(
        hardware,
        lambda gpu: (
            (gpu not in hardware_slows and gpu not in software_slows and _margin(gpu) is not None)
            and (_margin(gpu) or 0) <= _NEAR_SLOWDOWN_C
        ),
    )
    if near:
        yield Finding(
            "gpu.temperature-near-limit",
            "warn",
            hardware.host,
            named(near),
            f"the GPU is within {_NEAR_SLOWDOWN_C} degrees of slowing down for heat",
            _cooling_fix(near),
            evidence=of_each(near, _temperature),
            source="nvidia-smi -q -d TEMPERATURE; thresholds are each board's own",
        )


def _margin(gpu: Gpu) -> int | None:
    if gpu.temperature_margin_c is not None:
        return gpu.temperature_margin_c
    if gpu.temperature_c is None or gpu.temperature_slowdown_c is None:
        return None
    return gpu.temperature_slowdown_c - gpu.temperature_c


def _temperature(gpu: Gpu) -> str:
    parts = [f"{gpu.temperature_c} C" if gpu.temperature_c is not None else "temperature unknown"]
    if gpu.temperature_slowdown_c is not None:
        parts.append(f"slows down at {gpu.temperature_slowdown_c} C")
    elif gpu.temperature_margin_c is not None:
        parts.append(f"{gpu.temperature_margin_c} C left")
    return ", ".join([*parts, *gpu.throttle_reasons])


def _cooling_fix(gpus: list[Gpu]) -> str:
    if all(is_passive(gpu) for gpu in gpus):
        return (
            "these cards have no fan, the chassis cools them: look at its fans and their profile "
            "(BMC), dust, blanking plates and the air in front of the rack"
        )
    return "look at the card's fans, dust, and the air in front of the rack"


def power_findings(hardware: Hardware) -> Iterator[Finding]:
    brake = which(hardware, lambda gpu: "hw_power_brake_slowdown" in gpu.throttle_reasons)
    other = which(
        hardware,
        lambda gpu: (
            "hw_slowdown" in gpu.throttle_reasons
            and not {"hw_thermal_slowdown", "hw_power_brake_slowdown"} & set(gpu.throttle_reasons)
        ),
    )
    if brake:
        yield Finding(
            "gpu.power-brake",
            "refuse",
            hardware.host,
            named(brake),
            "the server tells the GPU to slow down, because its power supply is not enough",
            "look at the server's power supplies and their event log (BMC): one has failed, or a "
            "power limit of the rack is reached",
            evidence=of_each(brake, lambda gpu: ", ".join(gpu.throttle_reasons)),
            source=_REASONS,
        )
    if other:
        yield Finding(
            "gpu.hardware-slowdown",
            "warn",
            hardware.host,
            named(other),
            "the GPU slows itself down to half or less; it does not say whether for heat or power",
            "look at its temperature and power cables, and at the server's event log (BMC)",
            evidence=of_each(other, lambda gpu: ", ".join(gpu.throttle_reasons)),
            source=_REASONS,
        )
    low = which(hardware, _is_limited)
    if low:
        yield Finding(
            "gpu.power-limit-low",
            "warn",
            hardware.host,
            named(low),
            "its power limit is set below the default, so it computes slower than others",
            f"nvidia-smi -i {low[0].index} -pl {low[0].power_default_limit_watts:.0f} (each GPU), "
            "unless the rack's power asks for it: then accept this finding",
            evidence=of_each(
                low,
                lambda gpu: (
                    f"limit {gpu.power_limit_watts:.0f} W, default "
                    f"{gpu.power_default_limit_watts:.0f} W"
                ),
            ),
            source="nvidia-smi(1)",
        )
    capped = which(hardware, lambda gpu: "sw_power_cap" in gpu.throttle_reasons and gpu not in low)
    if capped:
        yield Finding(
            "gpu.power-cap",
            "note",
            hardware.host,
            named(capped),
            "the GPU computes at its power limit, as it should under full load",
            "nothing",
            evidence=of_each(capped, lambda gpu: f"{gpu.power_draw_watts} W"),
            source=_REASONS,
        )


def clock_findings(hardware: Hardware) -> Iterator[Finding]:
    """Only of cards at work in P0: idle ones, and GeForce cards in P2, clock their memory down."""
    slow = which(hardware, _has_slow_memory)
    if slow:
        yield Finding(
            "gpu.memory-clock-low",
            "warn",
            hardware.host,
            named(slow),
            "its memory runs far below its highest clock although it is at work, and each token is "
            "as slow as the memory",
            f"nvidia-smi -i {slow[0].index} -rmc and -rac (each GPU) take back clocks that "
            "somebody has locked; if nobody has, drain the host and reset the GPU or reboot",
            evidence=of_each(
                slow,
                lambda gpu: (
                    f"memory at {gpu.clock_memory_mhz} of {gpu.clock_memory_max_mhz} MHz, "
                    f"{gpu.performance_state}, {gpu.utilization_percent}% busy"
                ),
            ),
            source="nvidia-smi(1), clocks and lock-memory-clocks",
        )


def _has_slow_memory(gpu: Gpu) -> bool:
    now, most = gpu.clock_memory_mhz, gpu.clock_memory_max_mhz
    at_work = gpu.performance_state == "P0" and (gpu.utilization_percent or 0) >= _BUSY_PERCENT
    return at_work and now is not None and most is not None and now < _SLOW_MEMORY * most


def _is_limited(gpu: Gpu) -> bool:
    limit, default = gpu.power_limit_watts, gpu.power_default_limit_watts
    return limit is not None and default is not None and limit < default - 0.5
