"""Chassis fans through the BMC: the table's commands, proven by the sensors, undone in every case.

The program is the real one; ipmitool and the BMC behind it are a stand-in.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.deploys.artefacts import units_of
from pyinfra_deploy.facts.hardware import Hardware
from pyinfra_deploy.planning.bmc_table import bmc_board, chassis_fans_file
from pyinfra_deploy.planning.host_care import started_with
from pyinfra_deploy.settings.schema import Settings

if TYPE_CHECKING:
    from tests.fakes.bmc import FakeBmc

UNIT = units_of(Settings())["llm-chassis-fans.service"].content
SUPERMICRO = Hardware(
    "gpu01",
    board_vendor="Supermicro",
    board_name="X11DPG-OT-CPU",
    system_vendor="Supermicro",
    system_name="SYS-4029GP-TRT",
)
DELL = Hardware("gpu02", board_vendor="Dell Inc.", board_name="0WGD1", system_vendor="Dell Inc.",
                system_name="PowerEdge R740xd")  # fmt: skip


def configure(bmc: FakeBmc, hardware: Hardware, percent: int = 100, settle: float = 0.3) -> str:
    """What the deploy writes for this board, with less patience."""
    board = bmc_board(hardware)
    assert board is not None
    document = json.loads(chassis_fans_file(board, hardware, percent))
    text = json.dumps(document | {"settle_seconds": settle})
    (bmc.root / "etc/llm/chassis-fans.json").write_text(text)
    (bmc.root / "etc/systemd/system/llm-chassis-fans.service").write_text(UNIT)
    for name, value in document["board"].items():
        (bmc.root / "dmi" / name).write_text(value + "\n")
    return text


def step(bmc: FakeBmc, key: str) -> tuple[int, dict[str, Any]]:
    """Run what the unit says for `key`, as systemd would."""
    (line,) = re.findall(rf"^{key}=\S+/bin/fleet-host (.*)$", UNIT, re.MULTILINE)
    done = subprocess.run(
        bmc.command(*line.split()),
        env=bmc.environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def untouched(bmc: FakeBmc) -> bool:
    record = bmc.root / "lib/llm-chassis-fans/before.json"
    return bmc.state("mode") == "02" and bmc.state("manual") in ("", "0") and not record.exists()


def test_supermicro_at_full_speed_and_back(bmc: FakeBmc) -> None:
    text = configure(bmc, SUPERMICRO)
    assert step(bmc, "ExecStart") == (0, {"before": 4200.0, "after": 12000.0})
    assert bmc.state("mode") == "01"
    assert bmc.state("run/llm-chassis-fans/started") == started_with(UNIT, text)
    assert step(bmc, "ExecStopPost") == (0, {"undone": True})
    assert bmc.raw_calls()[-2] == "raw 0x30 0x45 0x01 0x02"  # the mode that was before
    assert untouched(bmc)
    assert step(bmc, "ExecStopPost") == (0, {"undone": False})


def test_supermicro_at_a_duty_for_both_zones(bmc: FakeBmc) -> None:
    configure(bmc, SUPERMICRO, percent=60)
    assert step(bmc, "ExecStart") == (0, {"before": 4200.0, "after": 7200.0})
    assert bmc.raw_calls()[-2:] == [
        "raw 0x30 0x70 0x66 0x01 0x00 0x3c",
        "raw 0x30 0x70 0x66 0x01 0x01 0x3c",
    ]


def test_dell_and_back(bmc: FakeBmc) -> None:
    configure(bmc, DELL, percent=80)
    assert step(bmc, "ExecStart") == (0, {"before": 4200.0, "after": 9600.0})
    assert bmc.state("manual") == "1"
    assert step(bmc, "ExecStopPost") == (0, {"undone": True})
    assert untouched(bmc)


def test_fans_that_do_not_react_are_given_back(bmc: FakeBmc) -> None:
    configure(bmc, SUPERMICRO)
    bmc.says("deaf")
    code, answer = step(bmc, "ExecStart")
    assert code == 1
    assert "did not react" in answer["error"]["what"]
    assert "4200 RPM before and at 4200 RPM after" in answer["error"]["why"]
    assert untouched(bmc)


def test_a_fan_that_stops_is_noticed(bmc: FakeBmc) -> None:
    configure(bmc, SUPERMICRO)
    bmc.says("dead-fan")
    code, answer = step(bmc, "ExecStart")
    assert code == 1
    assert "FAN2" in answer["error"]["why"]
    assert untouched(bmc)


@pytest.mark.parametrize("hardware", [SUPERMICRO, DELL])
def test_a_bmc_that_refuses_says_why(bmc: FakeBmc, hardware: Hardware) -> None:
    configure(bmc, hardware)
    bmc.says("refuses")
    code, answer = step(bmc, "ExecStart")
    assert code == 1
    assert "Insufficient privilege level" in answer["error"]["why"]
    assert "gpu_cooling: report" in answer["error"]["fix"]
    assert step(bmc, "ExecStopPost") == (0, {"undone": False})
    assert untouched(bmc)


def test_a_second_command_that_is_refused_undoes_the_first(bmc: FakeBmc) -> None:
    text = configure(bmc, SUPERMICRO, percent=60)
    (bmc.root / "etc/llm/chassis-fans.json").write_text(text.replace("0x70", "0x71"))
    code, answer = step(bmc, "ExecStart")
    assert code == 1
    assert "0x71" in answer["error"]["what"]
    assert untouched(bmc)


def test_kill_9_in_the_middle(bmc: FakeBmc) -> None:
    configure(bmc, SUPERMICRO, settle=30)
    bmc.says("deaf")
    process = subprocess.Popen(bmc.command("chassis-fans", "apply"), env=bmc.environment)
    deadline = time.monotonic() + 10
    while bmc.state("mode") != "01":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not untouched(bmc)
    assert step(bmc, "ExecStopPost") == (0, {"undone": True})
    assert untouched(bmc)


def test_slow_fans_are_waited_for(bmc: FakeBmc) -> None:
    configure(bmc, SUPERMICRO, settle=20)
    bmc.says("slow", "0.5")
    assert step(bmc, "ExecStart")[0] == 0


def test_after_a_power_loss_the_mode_from_before_it_still_counts(bmc: FakeBmc) -> None:
    configure(bmc, SUPERMICRO)
    assert step(bmc, "ExecStart")[0] == 0
    # No stop: the power went. The BMC has kept its mode, and the unit starts at boot.
    assert step(bmc, "ExecStart") == (0, {"before": 4200.0, "after": 12000.0})
    assert step(bmc, "ExecStopPost") == (0, {"undone": True})
    assert untouched(bmc)


def test_another_board_gets_no_command(bmc: FakeBmc) -> None:
    configure(bmc, SUPERMICRO)
    (bmc.root / "dmi/board_name").write_text("X9DRG-QF\n")
    code, answer = step(bmc, "ExecStart")
    assert code == 2
    assert "another board" in answer["error"]["what"]
    assert bmc.state("calls") == ""


def test_an_undo_that_fails_is_kept_and_said(bmc: FakeBmc) -> None:
    configure(bmc, SUPERMICRO)
    assert step(bmc, "ExecStart")[0] == 0
    bmc.says("refuses")
    code, answer = step(bmc, "ExecStopPost")
    assert code == 1
    assert "in the BMC's own interface now" in answer["error"]["fix"]
    (bmc.root / "refuses").unlink()
    assert step(bmc, "ExecStopPost") == (0, {"undone": True})
    assert untouched(bmc)


@pytest.mark.parametrize("missing", ["ipmitool", "fans"])
def test_without_sensors_nothing_is_set(bmc: FakeBmc, missing: str) -> None:
    configure(bmc, SUPERMICRO)
    program = bmc.root / "bin/ipmitool"
    program.write_text("#!/bin/sh\nexit 0\n" if missing == "fans" else "#!/no/such/interpreter\n")
    code, answer = step(bmc, "ExecStart")
    assert code == 1
    assert ("no fan's speed" in answer["error"]["what"]) is (missing == "fans")
    assert untouched(bmc)
