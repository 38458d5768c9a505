"""The job that installs a driver, with stand-ins for apt and the kernel: what it looks at before it
changes anything, its order, and that it goes on after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import driver, golive
from fleet_host.errors import HostError
from fleet_host.status import Progress

if TYPE_CHECKING:
    from tests.fakes.driver_host import DriverHost

FILES = Path(__file__).resolve().parents[3] / "files"
NAME = "nvidia-driver-lab"
UNIT = "llm-engine@main.service"
SPEC = {"packages": [NAME], "unit": UNIT, "go_live": None}


def run(host: DriverHost, **more: Any) -> dict[str, Any]:
    progress = Progress(host.root / "status.json", {"run": "r", "invocation_id": "i"})
    return driver.run({**SPEC, **more}, progress)


def refused(host: DriverHost, **more: Any) -> HostError:
    with pytest.raises(HostError) as caught:
        run(host, **more)
    return caught.value


def test_a_bare_host_gets_it_held_and_owes_a_reboot(driver_host: DriverHost) -> None:
    driver_host.says("load", "not-found")  # there is no unit of an engine yet
    found = run(driver_host)
    boot_id = found.pop("boot_id")
    assert found == {
        "installed": [NAME],
        "held": [NAME],
        "module": "590.10",
        "loaded": None,
        "reboot": True,
    }
    assert boot_id == driver.boot({})["boot_id"]
    assert driver_host.calls() == [
        "apt-get update",
        "dpkg",
        f"apt-get install {NAME}",
        f"apt-mark hold {NAME}",
    ]


def test_a_second_time_changes_nothing(driver_host: DriverHost) -> None:
    run(driver_host)
    driver_host.loads("590.10")
    before = driver_host.calls()
    found = run(driver_host)
    assert (found["installed"], found["held"], found["reboot"]) == ([], [], False)
    assert driver_host.calls() == before


def test_no_reboot_where_the_loaded_module_is_the_installed_one(driver_host: DriverHost) -> None:
    driver_host.loads("590.10")
    assert run(driver_host)["reboot"] is False


def test_the_engine_is_drained_and_stopped_first(
    driver_host: DriverHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver_host.says("unit", "active")
    flag = driver_host.root / "run/llm/drain/main"

    def drain(wish: golive.Wish, *_: object) -> bool:
        assert driver_host.calls() == []
        flag.write_text(json.dumps({"by": "go-live"}))
        assert wish.release == "abc"
        return True

    monkeypatch.setattr(golive, "drain", drain)
    live = {
        "engine": "main", "release": "abc", "unit": UNIT, "probe": {"model": "m"},
        "start_timeout_seconds": 1, "stall_timeout_seconds": 1, "drain_seconds": 1,
    }  # fmt: skip
    (driver_host.root / "llm/engines/main").mkdir(parents=True)
    run(driver_host, go_live=live)
    assert driver_host.calls()[:2] == [f"systemctl stop {UNIT}", "apt-get update"]
    assert driver_host.state("unit") == "inactive"  # it comes back after the reboot


def test_packages_that_no_source_has(driver_host: DriverHost) -> None:
    driver_host.says("unit", "active")
    error = refused(driver_host, packages=[NAME, "cuda-drivers-999"])
    assert error.what == "apt has no cuda-drivers-999 here"
    assert "non-free" in error.fix
    assert driver_host.calls() == []
    assert driver_host.state("unit") == "active"


@pytest.mark.parametrize("removed", ["nginx", "linux-image-amd64"])
def test_what_is_not_the_driver_s_is_never_removed(driver_host: DriverHost, removed: str) -> None:
    driver_host.says("removes", removed)
    driver_host.says("unit", "active")
    assert removed in refused(driver_host).what
    assert driver_host.calls() == []


def test_another_branch_makes_room_and_its_hold_of_ours_is_given_up(
    driver_host: DriverHost,
) -> None:
    driver_host.says("removes", "nvidia-driver-535")
    driver_host.says("held", "nvidia-driver-535")
    driver_host.says("llm/state/manifest.json", {"held_packages": ["nvidia-driver-535"]})
    assert run(driver_host)["installed"] == [NAME]
    assert driver_host.state("held").split() == [NAME]


def test_the_operator_s_hold_is_not_broken(driver_host: DriverHost) -> None:
    driver_host.says("removes", "nvidia-driver-535")
    driver_host.says("held", "nvidia-driver-535")
    driver_host.says("unit", "active")
    error = refused(driver_host)
    assert "nvidia-driver-535" in error.what
    assert "held by somebody else" in error.why
    assert driver_host.calls() == []


def test_a_failed_installation_lets_the_engine_serve_on(driver_host: DriverHost) -> None:
    driver_host.says("unit", "active")
    driver_host.says("fails")
    error = refused(driver_host)
    assert error.what == f"{NAME} could not be installed"
    assert any("enough free space" in line for line in error.detail)
    assert driver_host.state("unit") == "active"
    assert driver_host.calls()[-1] == f"systemctl start {UNIT}"


def test_a_failed_installation_holds_what_was_held(driver_host: DriverHost) -> None:
    old = "nvidia-driver-535"
    driver_host.says("installed", {old: "535.1.1-1"})
    driver_host.says("disk", "535.1.1")
    driver_host.says("held", old)
    driver_host.says("llm/state/manifest.json", {"held_packages": [old]})
    driver_host.says("fails")
    refused(driver_host)
    assert driver_host.state("held").split() == [old]
    assert json.loads(driver_host.state("llm/state/manifest.json"))["held_packages"] == [old]


def test_without_the_network_the_lists_that_are_there_do(driver_host: DriverHost) -> None:
    driver_host.says("offline")
    assert run(driver_host)["installed"] == [NAME]


def test_a_package_without_a_module_is_said(driver_host: DriverHost) -> None:
    driver_host.says("candidates", {NAME: "590.10-1", "other": "-1"})
    driver_host.says("installed", {"other": "1"})
    error = refused(driver_host, packages=["other"])
    assert "no NVIDIA kernel module on the disk" in error.what
    assert "dkms status" in error.fix


def test_killed_while_apt_runs_it_goes_on(driver_host: DriverHost) -> None:
    driver_host.says("dies")
    script = (
        "import sys; from pathlib import Path; from fleet_host import driver; "
        "from fleet_host.status import Progress; import json; "
        "driver.run(json.loads(sys.argv[1]), Progress(Path(sys.argv[2]), {}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(SPEC), str(driver_host.root / "status.json")],
        cwd=FILES,
        check=False,
    )
    assert done.returncode == -9
    (driver_host.root / "dies").unlink()
    assert run(driver_host)["installed"] == [NAME]
    assert driver_host.state("held") == NAME


def test_the_reboot_is_asked_for_once_a_boot(
    driver_host: DriverHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(driver_host)
    request = {"boot_id": found["boot_id"], "module": found["module"]}
    assert driver.reboot(request) == {"rebooting": True}
    assert driver_host.calls()[-1] == "systemd-run systemctl reboot"  # after the answer
    assert run(driver_host)["reboot"] is True  # a run that was killed right there goes on
    monkeypatch.setattr(driver, "boot_id", lambda: "the next boot")
    assert driver.reboot(request) == {"rebooting": False}
    # It came back without the module: another reboot would change nothing.
    error = refused(driver_host)
    assert "was rebooted for driver 590.10" in error.what
    assert "Secure Boot" in error.fix


def test_a_module_that_is_still_being_loaded_is_waited_for(
    driver_host: DriverHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: driver_host.loads("590.10"))
    assert driver.verify({"module": "590.10"})["gpus"] == 2


def test_the_end_is_an_answer_of_nvidia_smi_with_that_version(
    driver_host: DriverHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LOAD_SECONDS", 0.0)
    unit = driver_host.root / "etc/systemd/system" / driver.UNIT
    unit.write_text("[Service]\n")
    with pytest.raises(HostError, match="installed and does not work"):
        driver.verify({"module": "590.10"})
    driver_host.loads("580.95.05")
    with pytest.raises(HostError, match="does not answer with driver 590"):
        driver.verify({"module": "590.10"})
    assert unit.exists()
    driver_host.loads("590.10")
    assert driver.verify({"module": "590.10"}) == {"driver": "590.10", "gpus": 2}
    assert not unit.exists()


def test_an_unknown_wish_is_not_ignored(driver_host: DriverHost) -> None:
    with pytest.raises(HostError, match="unknown keys: reboot"):
        run(driver_host, reboot=True)
