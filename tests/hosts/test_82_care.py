"""Fans, chassis and holds on a real host: set up once, given back however they end, and gone when
the settings no longer ask for them. GPUs, NVIDIA's library and the BMC are stand-ins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lab import hosts
from tests.hosts import care_host
from tests.hosts.lab_session import DEBIAN12, shell, wait_for
from tests.hosts.standin_inventory import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hosts.pyinfra_run import Ran
    from tests.hosts.standin_inventory import Checkout

HOST = DEBIAN12
# Of the driver that the lab's nvidia-smi tells of.
DRIVER = "libnvidia-compute-lab"
HOLD_FILE = "/etc/apt/apt.conf.d/52llm-driver-hold"
# Of the unit: it looks every five seconds, and starts again fifteen after it was killed.
SECONDS = 60.0


@pytest.fixture(scope="module")
def care(steady: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """A host that serves, with eight GPUs of the lab, two packages of their driver and stand-ins
    for what cools them."""
    hosts.gpu(HOST, "fans")
    for name, version in ((DRIVER, "580.95.05-1"), ("libnvidia-other-lab", "535.1.1-1")):
        shell(HOST, f"dpkg -i {care_host.package(HOST, name, version, {})}")
    care_host.put_nvml(HOST, tmp_path_factory.mktemp("nvml"))
    yield steady
    hosts.gpu(HOST, "ok")
    steady.write()
    steady.deploy().done()


def deploy(checkout: Checkout, **wanted: Any) -> Ran:
    variables = {"gpu_host": {**SETTINGS["gpu_host"], "expected_gpus": 8}, **wanted}
    checkout.write(HOST, host_variables={HOST: variables})
    return checkout.deploy()


def test_hold_is_of_the_driver_s_own_packages_and_of_no_other(care: Checkout) -> None:
    shell(HOST, "apt-mark hold base-files")  # the operator's
    deploy(care, gpu_driver="hold").done().said(f"hold {DRIVER}")
    assert care_host.held(HOST) == ["base-files", DRIVER]
    assert care_host.manifest(HOST)["held_packages"] == [DRIVER]
    assert f'"^{DRIVER}$"' in shell(HOST, f"cat {HOLD_FILE}").replace("\\", "")
    assert "Package-Blacklist" in shell(HOST, "apt-config dump Unattended-Upgrade")
    assert deploy(care, gpu_driver="hold").done().unchanged


def test_back_to_check_gives_up_ours_and_leaves_the_operator_s(care: Checkout) -> None:
    deploy(care).done()
    assert care_host.held(HOST) == ["base-files"]
    assert shell(HOST, f"test -e {HOLD_FILE} || echo gone").strip() == "gone"
    assert deploy(care).done().unchanged
    shell(HOST, "apt-mark unhold base-files")


def test_fans_follow_the_temperature(care: Checkout) -> None:
    deploy(care, gpu_cooling="nvml").done().said("start llm-fans.service")
    state = care_host.unit(HOST, "llm-fans.service")
    assert (state["ActiveState"], state["UnitFileState"]) == ("active", "enabled")
    wait_for(lambda: care_host.fans(HOST) == ["40", "40"], SECONDS)
    care_host.temperature(HOST, 1, 80)
    wait_for(lambda: care_host.fans(HOST) == ["40", "100"], SECONDS)
    assert deploy(care, gpu_cooling="nvml").done().unchanged
    assert care_host.unit(HOST, "llm-fans.service") == state


def test_kill_9_gives_the_fans_back_and_then_takes_them_again(care: Checkout) -> None:
    before = care_host.unit(HOST, "llm-fans.service")["InvocationID"]
    shell(HOST, "systemctl kill --kill-whom=main -s KILL llm-fans.service")
    # By systemd, fifteen seconds before it starts the unit again.
    wait_for(lambda: care_host.fans(HOST) == ["auto", "auto"], 10)
    wait_for(lambda: care_host.unit(HOST, "llm-fans.service")["InvocationID"] != before, SECONDS)
    wait_for(lambda: care_host.fans(HOST) == ["40", "100"], SECONDS)


def test_a_killed_unit_that_stays_down_leaves_automatic_fans(care: Checkout) -> None:
    shell(
        HOST,
        "systemctl kill --kill-whom=main -s KILL llm-fans.service; sleep 1; "
        "systemctl stop llm-fans.service; systemctl reset-failed llm-fans.service || true",
    )
    assert care_host.fans(HOST) == ["auto", "auto"]
    deploy(care, gpu_cooling="nvml").done().said("start llm-fans.service")
    wait_for(lambda: care_host.fans(HOST) == ["40", "100"], SECONDS)


def test_back_to_report_removes_the_unit_and_gives_the_fans_back(care: Checkout) -> None:
    deploy(care).done().said("stop and remove llm-fans.service")
    assert care_host.fans(HOST) == ["auto", "auto"]
    assert care_host.unit(HOST, "llm-fans.service")["ActiveState"] == "inactive"
    left = shell(HOST, "ls /etc/systemd/system /etc/llm").split()
    assert not {"llm-fans.service", "fans.json"} & set(left)
    assert deploy(care).done().unchanged


@pytest.fixture(scope="module")
def chassis(care: Checkout) -> Checkout:
    """The same host with passive GPUs, on a board that the table knows."""
    hosts.gpu(HOST, "ok")
    care_host.put_bmc(HOST)
    return care


def test_passive_gpus_have_no_fans_to_set(chassis: Checkout) -> None:
    ran = deploy(chassis, gpu_cooling="nvml")
    assert ran.code != 0
    ran.said("cooling.no-fans")


def test_the_chassis_runs_at_full_speed_once_the_fans_have_proven_it(chassis: Checkout) -> None:
    deploy(chassis, gpu_cooling="bmc").done().said("start llm-chassis-fans.service")
    assert care_host.bmc_mode(HOST) == "01"
    state = care_host.unit(HOST, "llm-chassis-fans.service")
    assert (state["ActiveState"], state["UnitFileState"]) == ("active", "enabled")
    assert deploy(chassis, gpu_cooling="bmc").done().unchanged


def test_kill_9_in_the_middle_gives_the_chassis_back(chassis: Checkout) -> None:
    shell(HOST, "systemctl stop llm-chassis-fans.service")
    assert care_host.bmc_mode(HOST) == "02"
    # The fans take their time to react, and the unit waits for them.
    shell(HOST, f"echo 50 > {care_host.STATE}/slow; systemctl start --no-block llm-chassis-fans")
    wait_for(lambda: care_host.bmc_mode(HOST) == "01", SECONDS)
    shell(HOST, f"systemctl kill -s KILL llm-chassis-fans; rm {care_host.STATE}/slow")
    wait_for(lambda: care_host.bmc_mode(HOST) == "02", SECONDS)


def test_fans_that_do_not_react_are_undone_and_said(chassis: Checkout) -> None:
    shell(HOST, f"touch {care_host.STATE}/deaf; systemctl reset-failed llm-chassis-fans || true")
    ran = deploy(chassis, gpu_cooling="bmc")
    shell(HOST, f"rm {care_host.STATE}/deaf")
    assert ran.code != 0
    ran.said("did not react")
    assert care_host.bmc_mode(HOST) == "02"
    deploy(chassis, gpu_cooling="bmc").done()
    assert care_host.bmc_mode(HOST) == "01"


def test_back_to_report_gives_the_chassis_back_for_good(chassis: Checkout) -> None:
    deploy(chassis).done().said("stop and remove llm-chassis-fans.service")
    assert care_host.bmc_mode(HOST) == "02"
    left = shell(HOST, "ls /etc/systemd/system /etc/llm").split()
    assert not {"llm-chassis-fans.service", "chassis-fans.json"} & set(left)
    assert deploy(chassis).done().unchanged
