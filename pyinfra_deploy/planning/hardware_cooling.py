"""Who cools the GPUs, and whether what the settings ask for can be done on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.planning.bmc_table import bmc_board, board_text
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.gpu_table import is_passive, named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.facts.hardware import Gpu, Hardware
    from pyinfra_deploy.settings.schema import Settings

_BMC = {
    True: "a BMC is there",
    False: "no BMC is visible",
    None: "whether a BMC is there was not read",
}


def cooling_findings(hardware: Hardware, settings: Settings) -> Iterator[Finding]:
    if hardware.nvidia_smi_conf_present:
        yield Finding(
            "cooling.nvidia-smi-conf",
            "note",
            hardware.host,
            "/etc/nvidia/nvidia-smi.conf",
            "this file has no effect: no NVIDIA program reads it. Fans are not set by it",
            "remove it, so that nobody relies on it",
            evidence="the file is there",
            source="nvidia-settings' sources: such attributes are an X server's, with Coolbits",
        )
    if not hardware.gpus:
        return
    passive = [gpu for gpu in hardware.gpus if is_passive(gpu)]
    match settings.gpu_cooling:
        case "nvml" if passive:
            yield _no_fans(hardware, passive)
        case "bmc" if hardware.bmc_present is not True:
            yield _no_bmc(hardware)
        case "bmc" if bmc_board(hardware) is None:
            yield _unknown_board(hardware)
        case "bmc":
            yield _chassis_set(hardware, settings)
        case _ if passive:
            yield _by_chassis(hardware, passive)


def _no_fans(hardware: Hardware, passive: list[Gpu]) -> Finding:
    return Finding(
        "cooling.no-fans",
        "refuse",
        hardware.host,
        named(passive),
        "gpu_cooling is nvml, and these cards have no fans that could be set: the chassis "
        "cools them",
        "write gpu_cooling: report, or bmc on a board that is known",
        evidence=f"{passive[0].name}, fan "
        + ("not present" if passive[0].fan_present is False else "not reported"),
        source="nvml.h: fan calls are for products with fans; nvidia-smi(1)",
    )


def _no_bmc(hardware: Hardware) -> Finding:
    unread = hardware.bmc_present is None
    return Finding(
        "cooling.no-bmc",
        "refuse",
        hardware.host,
        "BMC",
        "gpu_cooling is bmc, and "
        + (
            "whether this host has a BMC could not be read"
            if unread
            else "this host shows no BMC (as on rented bare metal), so its fans cannot be set "
            "from here"
        ),
        "write gpu_cooling: report, or load ipmi_devintf and ipmi_si if the board has a BMC",
        evidence=("paths were not read; " if unread else "no /dev/ipmi0; ") + board_text(hardware),
        source="ipmitool(1)",
    )


def _unknown_board(hardware: Hardware) -> Finding:
    return Finding(
        "cooling.unknown-board",
        "refuse",
        hardware.host,
        "BMC",
        "gpu_cooling is bmc, and the commands for this board's fans are not known; a raw command "
        "of another board may do anything here",
        "write gpu_cooling: report and set the fan profile in the BMC's own interface, or add the "
        "board to planning/tables/bmc_cooling.yml with a source",
        evidence=board_text(hardware),
        source="planning/tables/bmc_cooling.yml",
    )


def _chassis_set(hardware: Hardware, settings: Settings) -> Finding:
    board = bmc_board(hardware)
    assert board is not None
    percent = settings.chassis_fan_percent
    return Finding(
        "cooling.chassis-fixed",
        "note" if percent == 100 else "warn",
        hardware.host,
        "BMC",
        f"the chassis' fans run at a fixed {percent}%, and follow no temperature while "
        "llm-chassis-fans.service is active",
        "nothing"
        if percent == 100
        else "watch temperatures under full load; chassis_fan_percent: 100 is the safe value",
        evidence=f"{board_text(hardware)}: {board.name}",
        source=board.source,
    )


def _by_chassis(hardware: Hardware, passive: list[Gpu]) -> Finding:
    return Finding(
        "cooling.by-chassis",
        "note",
        hardware.host,
        named(passive),
        f"these cards have no fan: the chassis cools them, and nothing on this host sets them "
        f"({_BMC[hardware.bmc_present]})",
        "nothing; if they get hot look at the chassis' fan profile",
        evidence=passive[0].name,
        source="nvidia-smi(1): many parts rely on fans in the surrounding enclosure",
    )
