"""What a GPU host is to have beside its services, from settings, snapshot and hardware."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.deploys.artefacts import units_of
from pyinfra_deploy.facts.hardware import Hardware, Package
from pyinfra_deploy.planning import host_care
from pyinfra_deploy.planning.host_care import (
    CHASSIS,
    CONFIGURATIONS,
    FANS,
    HOLD_FILE,
    PERSISTENCE,
    Care,
)
from pyinfra_deploy.planning.wanted import ManagedFile
from tests.unit.planning_compat.hosts import host, settings

if TYPE_CHECKING:
    from pyinfra_deploy.settings.schema import Settings

LOADED = "580.65.06"
DRIVER = ("libnvidia-compute-580-server", "nvidia-dkms-580-server", "nvidia-utils-580-server")
OTHERS = (
    Package("cuda-compat-13-0", "580.65.06-1"),
    Package("libnvidia-container1", "1.17.8-1"),
    Package("linux-modules-nvidia-580-server-6.8.0-45-generic", "6.8.0-45.45"),
    Package("nvidia-driver-535-server", "535.183.01-0ubuntu1"),
)
BOARD: dict[str, Any] = {"board_vendor": "Supermicro", "board_name": "X12DPG-OA6"}


def packages(*held: str) -> tuple[Package, ...]:
    versions = ("580.65.06-0ubuntu1", "580.65.06-0ubuntu1", "1:580.65.06-1")
    ours = [
        Package(name, version, held=name in held)
        for name, version in zip(DRIVER, versions, strict=True)
    ]
    return (*ours, *OTHERS)


def with_fans(**more: Any) -> Hardware:
    return host(changed={index: {"fan_present": True} for index in range(8)}, **more)


def snapshot(**more: Any) -> dict[str, Any]:
    return {"files": {}, "units": {}, "state": {"held_packages": []}, **more}


def care(wanted: Settings, hardware: Hardware, seen: dict[str, Any] | None = None) -> Care:
    return host_care.plan_care(wanted, seen or snapshot(), hardware, units_of(wanted))


def after(wanted: Settings, hardware: Hardware, done: Care) -> dict[str, Any]:
    """The host once `done` was done: its snapshot."""
    files = {
        file.path: {"sha256": file.sha256, "mode": file.mode, "owner": "root", "group": "root"}
        for file in done.files
    }
    by_path = {file.path: file.content for file in done.files}
    units = {}
    for unit in done.start:
        stamp = host_care.started_with(
            units_of(wanted)[unit].content, by_path[CONFIGURATIONS[unit]]
        )
        path = f"/run/{unit.removesuffix('.service')}/started"
        files[path] = {"sha256": ManagedFile(path, stamp).sha256}
        units[unit] = {"active": "active", "enabled": "enabled", "load": "loaded"}
    return snapshot(files=files, units=units, state={"held_packages": list(done.hold)})


@pytest.mark.parametrize("hardware", [host(), with_fans(packages=packages()), Hardware("cpu1")])
def test_nothing_by_default(hardware: Hardware) -> None:
    assert care(settings(), hardware) == Care()
    assert care(settings(), hardware).reasons() == []


def test_nothing_on_a_host_that_computes_on_its_cpu() -> None:
    asked = settings(device="cpu", args={}, gpu_host={}, gpu_driver="hold", gpu_cooling="nvml")
    assert care(asked, with_fans(packages=packages())) == Care()


def test_hold_is_of_the_loaded_branch_and_done_once() -> None:
    wanted, hardware = settings(gpu_driver="hold"), host(packages=packages())
    first = care(wanted, hardware)
    assert first.hold == DRIVER
    (file,) = first.files
    assert file.path == HOLD_FILE
    assert '    "^libnvidia\\-compute\\-580\\-server$";' in file.content
    assert "cuda-compat" not in file.content
    assert first.reasons() == [f"hold {', '.join(DRIVER)}"]
    done = replace(hardware, packages=packages(*DRIVER))
    assert care(wanted, done, after(wanted, hardware, first)) == Care()


def test_install_holds_what_is_there() -> None:
    assert care(settings(gpu_driver="install"), host(packages=packages())).hold == DRIVER


def test_only_what_is_not_held_yet() -> None:
    found = care(settings(gpu_driver="hold"), host(packages=packages(DRIVER[0], DRIVER[2])))
    assert found.hold == (DRIVER[1],)


def test_back_to_check_gives_up_ours_and_no_other() -> None:
    hardware = host(packages=packages(*DRIVER))
    seen = snapshot(
        files={HOLD_FILE: {"sha256": "x"}}, state={"held_packages": [DRIVER[0], DRIVER[1]]}
    )
    found = care(settings(), hardware, seen)
    assert (found.release, found.hold, found.remove) == (DRIVER[:2], (), (HOLD_FILE,))
    assert found.reasons() == [
        f"remove {HOLD_FILE}",
        f"give up our hold of {DRIVER[0]}, {DRIVER[1]}",
    ]


def test_a_new_branch_takes_the_holds_with_it() -> None:
    newer = tuple(
        replace(package, name=package.name.replace("580", "590"), version="590.10-1")
        for package in packages()[:3]
    )
    hardware = host(packages=newer, loaded_module_version="590.10")
    seen = snapshot(state={"held_packages": list(DRIVER)})
    found = care(settings(gpu_driver="hold"), hardware, seen)
    assert found.release == DRIVER
    assert found.hold == tuple(name.replace("580", "590") for name in DRIVER)


@pytest.mark.parametrize("loaded", [None, "470.256.02"])
def test_a_driver_that_is_of_no_package_holds_nothing(loaded: str | None) -> None:
    hardware = host(packages=packages(), loaded_module_version=loaded, driver_version=loaded)
    assert care(settings(gpu_driver="hold"), hardware) == Care()


def test_fans_of_the_gpus_start_once() -> None:
    wanted = settings(gpu_cooling="nvml")
    first = care(wanted, with_fans())
    assert [file.path for file in first.files] == [
        f"/etc/systemd/system/{FANS}",
        CONFIGURATIONS[FANS],
    ]
    curve = json.loads(first.files[1].content)["curve"]
    assert curve == [[40, 40], [60, 70], [75, 100]]
    assert first.start == (FANS,)
    assert first.reasons() == [f"start {FANS}"]
    seen = after(wanted, with_fans(), first)
    assert care(wanted, with_fans(), seen) == Care()
    for change in ({"active": "failed"}, {"enabled": "disabled"}):
        broken = {**seen, "units": {FANS: {**seen["units"][FANS], **change}}}
        assert care(wanted, with_fans(), broken).start == (FANS,)


def test_a_restart_that_a_killed_run_owed_is_not_lost() -> None:
    wanted = settings(gpu_cooling="nvml")
    seen = after(wanted, with_fans(), care(wanted, with_fans()))
    seen["files"]["/run/llm-fans/started"] = {"sha256": "of an older curve"}
    found = care(wanted, with_fans(), seen)
    assert (found.files, found.start) == ((), (FANS,))


def test_chassis_fans_by_the_board_s_row() -> None:
    wanted = settings(gpu_cooling="bmc", chassis_fan_percent=70)
    hardware = host(**BOARD)
    first = care(wanted, hardware)
    assert first.start == (CHASSIS,)
    document = json.loads(first.files[1].content)
    assert document["board"] == BOARD
    assert document["set"] == [
        "raw 0x30 0x45 0x01 0x01",
        "raw 0x30 0x70 0x66 0x01 0x00 0x46",
        "raw 0x30 0x70 0x66 0x01 0x01 0x46",
    ]
    assert document["undo"] == ["raw 0x30 0x45 0x01 {mode}"]
    assert care(wanted, hardware, after(wanted, hardware, first)) == Care()


def test_from_one_way_to_another_stops_the_first() -> None:
    nvml, bmc = settings(gpu_cooling="nvml"), settings(gpu_cooling="bmc")
    hardware = with_fans(**BOARD)
    seen = after(nvml, hardware, care(nvml, hardware))
    found = care(bmc, hardware, seen)
    assert (found.stop, found.start) == ((FANS,), (CHASSIS,))
    assert found.remove == (f"/etc/systemd/system/{FANS}", CONFIGURATIONS[FANS])
    gone = care(settings(), hardware, seen)
    assert (gone.stop, gone.start, gone.files) == ((FANS,), (), ())
    assert gone.reasons() == [f"stop and remove {FANS}: settings no longer ask for it"]


OFF = {0: {"persistence_enabled": False}}


@pytest.mark.parametrize(
    ("installed", "load", "switched"),
    [(True, None, True), (False, "loaded", True), (False, "not-found", False), (None, None, False)],
)
def test_persistence(installed: bool | None, load: str | None, switched: bool) -> None:
    hardware = host(changed=OFF, persistenced_installed=installed)
    seen = snapshot(units={"nvidia-persistenced.service": {"load": load}} if load else {})
    found = care(settings(), hardware, seen)
    assert (found.persistence is not None) is switched
    assert found.reasons() == (
        ["switch persistence mode on, now and at every boot"] if switched else []
    )
    on = host(persistenced_installed=True)
    assert care(settings(), on, seen) == Care()


def test_our_persistence_unit_follows_its_template() -> None:
    path = f"/etc/systemd/system/{PERSISTENCE}"
    hardware = host(persistenced_installed=True)
    found = care(settings(), hardware, snapshot(files={path: {"sha256": "old"}}))
    assert [file.path for file in found.files] == [path]


def test_everything_that_is_compared_is_read() -> None:
    read = set(host_care.files_to_read())
    for wanted in (settings(gpu_cooling="nvml", gpu_driver="hold"), settings(gpu_cooling="bmc")):
        found = care(wanted, with_fans(packages=packages(), **BOARD))
        assert {file.path for file in found.files} <= read
    assert "/etc/nvidia/nvidia-smi.conf" not in read


def test_the_request_has_every_change() -> None:
    found = care(settings(gpu_cooling="nvml", gpu_driver="hold"), with_fans(packages=packages()))
    assert found.request() == {
        "remove": [],
        "stop": [],
        "start": [FANS],
        "hold": list(DRIVER),
        "release": [],
        "persistence": None,
    }
