"""The units that cool and keep the driver: what must hold in them."""

from __future__ import annotations

import pytest

from pyinfra_deploy.deploys.artefacts import units_of
from pyinfra_deploy.settings.schema import Settings

UNITS = units_of(Settings())


def values(name: str, key: str) -> list[str]:
    lines = UNITS[f"{name}.service"].content.splitlines()
    return [line.split("=", 1)[1] for line in lines if line.startswith(f"{key}=")]


@pytest.mark.parametrize(
    ("name", "undo"),
    [("llm-fans", "fans restore"), ("llm-chassis-fans", "chassis-fans undo")],
)
def test_whatever_ends_it_undoes_it(name: str, undo: str) -> None:
    # ExecStopPost= runs after a failure, SIGKILL and the watchdog too (systemd.service(5)).
    assert values(name, "ExecStopPost") == [f"/srv/llm/bin/fleet-host {undo}"]


def test_a_hung_driver_is_noticed() -> None:
    assert values("llm-fans", "Type") == ["notify"]
    assert values("llm-fans", "WatchdogSec") == ["60"]
    assert values("llm-fans", "WatchdogSignal") == ["SIGKILL"]


def test_what_to_undo_outlives_a_restart_of_the_host() -> None:
    assert values("llm-chassis-fans", "StateDirectory") == ["llm-chassis-fans"]


def test_only_the_devices_and_privileges_that_are_needed() -> None:
    assert values("llm-fans", "DeviceAllow") == ["char-nvidia* rw"]
    assert values("llm-fans", "CapabilityBoundingSet") == ["CAP_SYS_ADMIN"]
    assert values("llm-chassis-fans", "DeviceAllow") == ["char-ipmidev rw"]
    assert values("llm-chassis-fans", "CapabilityBoundingSet") == [""]


def test_they_begin_at_boot() -> None:
    for name in ("llm-fans", "llm-chassis-fans", "llm-persistence"):
        assert values(name, "WantedBy") == ["multi-user.target"]


def test_the_two_persistence_daemons_do_not_run_at_once() -> None:
    assert values("llm-persistence", "Conflicts") == ["nvidia-persistenced.service"]


def test_no_file_of_ours_writes_nvidia_smi_conf() -> None:
    assert all("nvidia-smi.conf" not in unit.content for unit in UNITS.values())
