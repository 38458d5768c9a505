"""What is said of cooling and of the driver's packages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.facts.hardware import Hardware, Package
from pyinfra_deploy.planning import tables
from pyinfra_deploy.planning.bmc_table import bmc_board
from pyinfra_deploy.planning.hardware_findings import hardware_findings
from tests.unit.planning_compat.hosts import host, ids, settings

if TYPE_CHECKING:
    from pyinfra_deploy.planning.finding import Finding


def one(identifier: str, hardware: Hardware, **wanted: Any) -> Finding:
    found = hardware_findings(hardware, settings(**wanted))
    (finding,) = [finding for finding in found if finding.id == identifier]
    return finding


@pytest.mark.parametrize(
    ("vendor", "model", "row"),
    [
        ("Supermicro", "X10DRG-O+-CPU", "Supermicro X10 to X13"),
        ("Supermicro", "X13DEG-OAD", "Supermicro X10 to X13"),
        ("Supermicro", "X9DRG-QF", None),
        ("Supermicro", "H12DSG-O-CPU", None),
        ("Supermicro", None, None),
        ("Dell Inc.", "PowerEdge R740xd", "Dell PowerEdge of the 12th to 14th generation"),
        ("Dell Inc.", "PowerEdge T640", "Dell PowerEdge of the 12th to 14th generation"),
        ("Dell Inc.", "PowerEdge C4140", "Dell PowerEdge of the 12th to 14th generation"),
        ("Dell Inc.", "PowerEdge R750xa", None),
        ("Dell Inc.", "PowerEdge XE9680", None),
        ("Inspur", "NF5688M6", None),
        (None, None, None),
    ],
)
def test_boards(vendor: str | None, model: str | None, row: str | None) -> None:
    hardware = Hardware(
        "h", board_vendor=vendor, board_name=model, system_vendor=vendor, system_name=model
    )
    found = bmc_board(hardware)
    assert (found.name if found else None) == row


def test_every_row_can_be_undone_and_says_where_it_is_from() -> None:
    for row in tables.bmc_cooling().boards:
        assert row.undo
        assert row.source
        assert any("{percent}" in command for command in row.duty)
        assert not set(row.undo) & set(row.full)


def test_an_unknown_board_is_named() -> None:
    hardware = host(board_vendor="Inspur", board_name="YZMB", system_vendor="Inspur")
    finding = one("cooling.unknown-board", hardware, gpu_cooling="bmc")
    assert finding.severity == "refuse"
    assert finding.evidence == "board Inspur YZMB, system Inspur ?"


def test_a_bmc_that_was_not_read_is_not_taken_for_one() -> None:
    finding = one("cooling.no-bmc", host(bmc_present=None), gpu_cooling="bmc")
    assert "could not be read" in finding.message


@pytest.mark.parametrize(("percent", "severity"), [(100, "note"), (60, "warn")])
def test_a_fixed_speed_is_said(percent: int, severity: str) -> None:
    hardware = host(board_vendor="Supermicro", board_name="X11DPG-OT-CPU")
    finding = one("cooling.chassis-fixed", hardware, gpu_cooling="bmc", chassis_fan_percent=percent)
    assert finding.severity == severity
    assert f"{percent}%" in finding.message


def test_a_driver_that_is_installed_needs_no_installation() -> None:
    assert ids(hardware_findings(host(), settings(gpu_driver="install")), "refuse") == []


def test_a_driver_from_elsewhere_has_nothing_to_hold() -> None:
    held = settings(gpu_driver="hold")
    assert "driver.nothing-to-hold" in ids(hardware_findings(host(), held), "note")
    packaged = host(packages=(Package("libnvidia-compute-580", "580.65.06-0ubuntu1"),))
    assert "driver.nothing-to-hold" not in ids(hardware_findings(packaged, held))
    assert "driver.nothing-to-hold" not in ids(hardware_findings(host(), settings()))


def test_persistence_that_the_deploy_switches_on_is_a_note() -> None:
    off = host(changed={0: {"persistence_enabled": False}}, persistenced_installed=True)
    assert one("gpu.persistence-off", off).severity == "note"
    missing = one("gpu.persistence-off", replace(off, persistenced_installed=False))
    assert missing.severity == "warn"
    assert "there is no /usr/bin/nvidia-persistenced" in missing.evidence
    assert "install nvidia-persistenced" in missing.fix
