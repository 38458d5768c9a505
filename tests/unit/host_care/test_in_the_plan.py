"""The plan of a host with its hardware: what is cared for stands in it, if it is lacking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.deploys.session import snapshot_request
from pyinfra_deploy.facts.hardware import Hardware, Package
from pyinfra_deploy.planning import host_care, host_plan
from tests.unit.planning import worlds
from tests.unit.planning_compat.hosts import host

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan

DRIVER = Package("libnvidia-compute-580-server", "580.65.06-0ubuntu1")


def plan(hardware: Hardware | None, **wanted: Any) -> HostPlan:
    """A host that a deploy with the ordinary settings has converged, and what `wanted` adds."""
    ordinary = worlds.settings_with()
    seen = worlds.converged(ordinary, worlds.artefacts_with(ordinary))
    settings = worlds.settings_with(wanted)
    artefacts = worlds.artefacts_with(settings)
    return host_plan.plan_host(
        worlds.HOST, worlds.ALL, settings, seen, artefacts, hardware=hardware
    )


def test_a_converged_host_with_its_hardware_changes_nothing() -> None:
    assert plan(host(packages=(DRIVER,))).reasons() == []
    assert plan(None, gpu_driver="hold").reasons() == []  # nothing is decided before it was read


def test_files_are_written_before_what_uses_them() -> None:
    fans = host(changed={index: {"fan_present": True} for index in range(8)}, packages=(DRIVER,))
    found = plan(fans, gpu_driver="hold", gpu_cooling="nvml")
    assert found.reasons() == [
        "write /etc/systemd/system/llm-fans.service, /etc/llm/fans.json, "
        "/etc/apt/apt.conf.d/52llm-driver-hold",
        "hold libnvidia-compute-580-server",
        "start llm-fans.service",
    ]
    assert found.changes


def test_bmc_needs_its_program() -> None:
    board = host(board_vendor="Supermicro", board_name="X11DPG-OT-CPU")
    assert plan(board, gpu_cooling="bmc").packages == ("ipmitool",)


def test_the_snapshot_is_asked_for_what_the_plan_compares() -> None:
    settings = worlds.settings_with()
    artefacts = worlds.artefacts_with(settings)
    request = snapshot_request(settings, worlds.ALL, artefacts)
    assert set(host_care.files_to_read()) <= set(request["files"])
    assert set(host_care.UNITS) <= set(request["units"])
    gateway_only = snapshot_request(settings, frozenset({"gateway"}), artefacts)
    assert not set(host_care.UNITS) & set(gateway_only["units"])
