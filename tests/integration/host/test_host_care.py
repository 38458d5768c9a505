"""`fleet-host host care`: holds that are ours and no others, units, the driver kept loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import care, holds
from fleet_host.errors import HostError, SpecError

if TYPE_CHECKING:
    from tests.fakes.care_host import CareHost

FILES = Path(__file__).resolve().parents[3] / "files"
OURS = ["libnvidia-compute-580-server", "nvidia-utils-580-server"]


def asked(**more: Any) -> dict[str, Any]:
    """Nothing, but for `more`: the shape of planning/host_care.py."""
    empty: dict[str, Any] = {key: [] for key in ("stop", "start", "remove", "hold", "release")}
    return {**empty, "persistence": None, **more}


def recorded(care_host: CareHost) -> list[str]:
    return list(json.loads(care_host.state("llm/state/manifest.json"))["held_packages"])


def test_holding_twice_changes_nothing_the_second_time(care_host: CareHost) -> None:
    assert care.care(asked(hold=OURS))["held"] == OURS
    assert care_host.state("held").split() == OURS
    before = len(care_host.calls())
    assert care.care(asked(hold=OURS))["held"] == []
    assert len(care_host.calls()) == before
    assert recorded(care_host) == OURS


def test_the_operator_s_hold_stays_the_operator_s(care_host: CareHost) -> None:
    care_host.says("held", OURS[0])
    assert care.care(asked(hold=OURS))["held"] == [OURS[1]]
    assert recorded(care_host) == [OURS[1]]
    assert care.care(asked(release=OURS))["released"] == [OURS[1]]
    assert care_host.state("held").split() == [OURS[0]]
    assert recorded(care_host) == []
    assert care_host.calls("apt-mark unhold") == [f"apt-mark unhold {OURS[1]}"]


def test_what_the_manifest_says_beside_stays(care_host: CareHost) -> None:
    care_host.says("llm/state/manifest.json", '{"format": 1}')
    care.care(asked(hold=OURS))
    assert json.loads(care_host.state("llm/state/manifest.json"))["format"] == 1


def test_our_hold_that_somebody_gave_up_is_forgotten_in_peace(care_host: CareHost) -> None:
    care.care(asked(hold=OURS))
    care_host.says("held")
    assert care.care(asked(release=OURS))["released"] == OURS
    assert care_host.calls("apt-mark unhold") == []
    assert recorded(care_host) == []


def test_dpkg_s_lock_is_waited_for(care_host: CareHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holds, "LOCK_PAUSE_SECONDS", 0.01)
    care_host.says("locked", "3")
    assert care.care(asked(hold=OURS))["held"] == OURS
    monkeypatch.setattr(holds, "LOCK_SECONDS", 0.0)
    care_host.says("locked", "3")
    with pytest.raises(HostError, match="apt-mark hold more") as caught:
        care.care(asked(hold=["more"]))
    assert "pid 4711" in caught.value.why


def test_killed_between_the_record_and_the_hold(care_host: CareHost) -> None:
    care_host.says("dies")
    request = json.dumps(asked(hold=OURS))
    done = subprocess.run(
        [sys.executable, "-m", "fleet_host", "host", "care"],
        input=request,
        cwd=FILES,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == -9
    assert recorded(care_host) == OURS
    (care_host.root / "dies").unlink()
    care_host.says("held")
    assert care.care(asked(hold=OURS))["held"] == OURS
    assert care.care(asked(release=OURS))["released"] == OURS
    assert care_host.state("held") == ""


def test_a_cooling_unit_is_enabled_and_restarted(care_host: CareHost) -> None:
    care_host.says("units/llm-fans.service", "disabled inactive")
    assert care.care(asked(start=["llm-fans.service"]))["started"] == ["llm-fans.service"]
    assert care_host.state("units/llm-fans.service") == "enabled active"


def test_a_unit_that_does_not_start_says_why(care_host: CareHost) -> None:
    care_host.says("units/llm-fans.service", "disabled inactive")
    care_host.says("fails-llm-fans.service")
    with pytest.raises(HostError, match=r"llm-fans\.service does not start") as caught:
        care.care(asked(start=["llm-fans.service"]))
    assert caught.value.what == "llm-fans.service does not start: the GPU has no fan"
    assert (caught.value.why, caught.value.fix) == ("the chassis cools it.", "Write report.")


def test_what_is_no_longer_wanted_is_stopped_before_its_files_go(care_host: CareHost) -> None:
    care_host.says("units/llm-fans.service", "enabled active")
    unit = care_host.root / "etc/systemd/system/llm-fans.service"
    unit.write_text("[Service]\n")
    care.care(asked(stop=["llm-fans.service"], remove=[str(unit), str(unit) + ".json"]))
    assert not unit.exists()
    assert care_host.calls("systemctl") == [
        "systemctl disable --now llm-fans.service",
        "systemctl daemon-reload",
    ]
    care.care(asked(stop=["never-was.service"]))


def test_a_unit_that_could_not_undo_keeps_its_files_and_says_so(care_host: CareHost) -> None:
    care_host.says("units/llm-chassis-fans.service", "enabled active")
    care_host.says("dirty-stop")
    unit = care_host.root / "etc/systemd/system/llm-chassis-fans.service"
    unit.write_text("[Service]\n")
    with pytest.raises(HostError, match="did not stop cleanly"):
        care.care(asked(stop=["llm-chassis-fans.service"], remove=[str(unit)]))
    assert unit.exists()


def test_a_unit_that_had_failed_before_can_be_given_up(care_host: CareHost) -> None:
    care_host.says("units/llm-chassis-fans.service", "enabled failed")
    assert care.care(asked(stop=["llm-chassis-fans.service"]))["stopped"]
    assert care_host.state("units/llm-chassis-fans.service") == "disabled inactive"


def test_what_an_earlier_stop_could_not_undo_is_undone_or_said(care_host: CareHost) -> None:
    care_host.says("units/llm-chassis-fans.service", "enabled failed")
    record = care_host.root / "lib/llm-chassis-fans/before.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"undo": ["raw 0x30"], "mode": None, "read_mode": None}))
    program = care_host.root / "bin/ipmitool"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(HostError, match="could not be given back"):
        care.care(asked(stop=["llm-chassis-fans.service"]))
    program.write_text("#!/bin/sh\nexit 0\n")
    care.care(asked(stop=["llm-chassis-fans.service"]))
    assert not record.exists()


def test_debian_s_unit_is_enabled(care_host: CareHost) -> None:
    care_host.says("units/nvidia-persistenced.service", "disabled inactive")
    assert care.care(asked(persistence="[Unit]\n"))["persistence"] == care.DISTRIBUTION_UNIT
    assert care_host.state("units/nvidia-persistenced.service") == "enabled active"
    assert not (care_host.root / "etc/systemd/system" / care.OUR_UNIT).exists()


def test_ubuntu_s_unit_leaves_the_mode_off_and_gets_a_drop_in(care_host: CareHost) -> None:
    care_host.says("units/nvidia-persistenced.service", "static active")
    care_host.says("no-mode")
    care.care(asked(persistence="[Unit]\n"))
    drop_in = care_host.state("etc/systemd/system/nvidia-persistenced.service.d/llm.conf")
    assert "nvidia-smi -pm 1" in drop_in
    assert "systemctl enable nvidia-persistenced.service" not in care_host.calls()
    assert care_host.state("persistence") == "Enabled"


def test_without_a_unit_of_the_distribution_ours_runs_the_daemon(care_host: CareHost) -> None:
    (care_host.root / "root/usr/bin/nvidia-persistenced").touch()
    assert care.care(asked(persistence="[Unit]\n"))["persistence"] == care.OUR_UNIT
    assert care_host.state(f"units/{care.OUR_UNIT}") == "enabled active"
    # Later the distribution's package comes: ours makes room for its unit.
    care_host.says("persistence", "Disabled")
    care_host.says("units/nvidia-persistenced.service", "disabled inactive")
    care.care(asked(persistence="[Unit]\n"))
    assert care_host.state(f"units/{care.OUR_UNIT}") == "disabled inactive"
    assert not (care_host.root / "etc/systemd/system" / care.OUR_UNIT).exists()


def test_without_the_daemon_it_is_refused(care_host: CareHost) -> None:
    with pytest.raises(HostError, match="cannot be switched on") as caught:
        care.care(asked(persistence="[Unit]\n"))
    assert "nvidia-compute-utils-NNN-server" in caught.value.fix
    assert care_host.calls() == []


def test_a_mode_that_stays_off_is_said(care_host: CareHost) -> None:
    (care_host.root / "root/usr/bin/nvidia-persistenced").touch()
    care_host.says("no-mode")
    with pytest.raises(HostError, match="still off"):
        care.care(asked(persistence="[Unit]\n"))


def test_an_unknown_wish_is_not_ignored(care_host: CareHost) -> None:
    with pytest.raises(SpecError, match="unknown keys: reboot"):
        care.care(asked(reboot=True))
