"""What settings ask of a host, facts that are odd, and kernel lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyinfra_deploy.facts.hardware import (
    DriverFailure,
    Gpu,
    GpuProcess,
    Hardware,
    Mount,
    Package,
)
from pyinfra_deploy.planning import tables
from pyinfra_deploy.planning.hardware_findings import (
    Demand,
    hardware_findings,
    uses_gpus,
    wanted_gpus,
)
from pyinfra_deploy.planning.kernel_events import same_device
from tests.unit.planning_compat.hosts import host, ids, l20, settings, xid


def every(**changes: Any) -> Hardware:
    return host(changed=dict.fromkeys(range(8), changes))


def failed(kind: Any, text: str, **more: Any) -> Hardware:
    return host(gpus=(), failure=DriverFailure(kind, text), driver_version=None, **more)


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "expected", "wanted"),
    [
        ({"tensor-parallel-size": 8}, None, 8),
        ({"tensor-parallel-size": 4, "pipeline-parallel-size": 2}, None, 8),
        ({"tensor-parallel-size": 2, "data-parallel-size": 2}, None, 4),
        ({}, None, 1),
        ({}, 8, 8),
        ({"tensor-parallel-size": 8}, 4, 8),
    ],
)
def test_how_many_gpus_are_wanted(args: dict[str, Any], expected: Any, wanted: int) -> None:
    asked = settings(args=args, gpu_host={"expected_gpus": expected})
    assert wanted_gpus(asked)[0] == wanted
    assert ("gpu.too-few" in ids(hardware_findings(host(2), asked))) == (wanted > 2)


def test_more_gpus_than_expected_is_a_note() -> None:
    asked = settings(args={"tensor-parallel-size": 4}, gpu_host={"expected_gpus": 4})
    assert "gpu.more-than-expected" in ids(hardware_findings(host(8), asked), "note")


def test_a_model_by_its_old_name() -> None:
    """Drivers before 465 print no NVIDIA in front."""
    assert ids(hardware_findings(every(name="L20"), settings()), "refuse") == []


def test_a_host_that_computes_on_its_cpu() -> None:
    cpu = settings(device="cpu", args={}, gpu_host={})
    assert not uses_gpus(cpu)
    broken = failed("mismatch", "Driver/library version mismatch")
    assert hardware_findings(broken, cpu) == ()
    assert hardware_findings(Hardware("cpu1"), cpu) == ()
    # But one that says it has GPUs is judged by them (the lab).
    asked = settings(device="cpu", args={}, gpu_host={"expected_gpus": 8})
    assert ids(hardware_findings(broken, asked), "refuse") == ["gpu.driver-mismatch"]


@pytest.mark.parametrize(
    ("cooling", "hardware", "refused"),
    [
        ("report", host(), None),
        ("nvml", host(), "cooling.no-fans"),
        ("nvml", every(fan_present=True, fan_percent=30), None),
        ("bmc", host(board_vendor="Supermicro", board_name="X11DPG-OT-CPU"), None),
        ("bmc", host(board_vendor="ASUSTeK", board_name="Z11"), "cooling.unknown-board"),
        ("bmc", host(), "cooling.unknown-board"),
        ("bmc", host(bmc_present=None), "cooling.no-bmc"),
        ("bmc", host(bmc_present=False), "cooling.no-bmc"),
        ("report", host(bmc_present=False), None),
    ],
)
def test_cooling_that_cannot_be(cooling: Any, hardware: Hardware, refused: str | None) -> None:
    found = ids(hardware_findings(hardware, settings(gpu_cooling=cooling)), "refuse")
    assert found == ([refused] if refused else [])


def test_packages_that_the_deploy_will_hold_are_a_note() -> None:
    exposed = host(packages=(Package("libnvidia-compute-580", "580.65.06", False, True),))
    held = settings(gpu_driver="hold")
    assert "gpu.packages-not-held" in ids(hardware_findings(exposed, held), "note")


def test_room_for_the_model() -> None:
    needs = Demand(model_bytes=239 * 10**9)
    small = host(disk_free_bytes=200 * 2**30)
    assert ids(hardware_findings(small, settings(), needs), "refuse") == ["disk.model"]
    there = Demand(model_bytes=239 * 10**9, model_on_host=True)
    assert ids(hardware_findings(small, settings(), there), "refuse") == []
    assert ids(hardware_findings(small, settings()), "refuse") == []
    little = host(memory_total_bytes=128 * 2**30)
    assert "host.memory-below-model" in ids(hardware_findings(little, settings(), needs), "note")


# ---- odd facts -----------------------------------------------------------------------------------


def test_sixteen_gpus_with_holes() -> None:
    cards = tuple(
        replace(l20(i), index=i, pci_address=f"0000:{i:02x}:00.0")
        for i in range(16)
        if i not in (6, 11)
    )
    hardware = host(gpus=cards, topology=None)
    found = hardware_findings(hardware, settings())
    assert ids(found, "refuse") == []
    (hole,) = [f for f in found if f.id == "gpu.number-missing"]
    assert "0-5, 7-10 and 12-15" in hole.message
    assert "6 and 11 are not described" in hole.message


def test_a_gpu_twice() -> None:
    hardware = host(gpus=(l20(0), l20(0)))
    asked = settings(args={}, gpu_host={})
    assert "gpu.listed-twice" in ids(hardware_findings(hardware, asked), "warn")


@pytest.mark.parametrize(
    ("name", "lies"), [("NVIDIA L20X", True), ("NVIDIA L20", False), ("NVIDIA Unheard", False)]
)
def test_the_l20x_is_no_l20(name: str, lies: bool) -> None:
    cards = tuple(
        Gpu(i, name, memory_total_mib=143771 if lies else 46068, compute_capability=None)
        for i in range(8)
    )
    found = hardware_findings(host(gpus=cards), settings(gpu_host={}))
    assert ids(found, "refuse") == []
    assert ("gpu.name-misleads" in ids(found)) == lies


def test_gpus_of_which_nothing_else_is_known() -> None:
    bare = Hardware("gpu01", tuple(Gpu(i, "NVIDIA L20") for i in range(8)))
    assert ids(hardware_findings(bare, settings()), "refuse", "warn") == []


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("0000:3b:00.0", "00000000:3B:00.0", True),
        ("0000:3b:00", "0000:3b:00.0", True),
        ("PCI:0000:3b:00", "0000:3b:00.0", True),
        ("0000:3b:00.0", "0001:3b:00.0", False),
        ("0000:3b:00.0", "0000:3c:00.0", False),
        (None, "0000:3b:00.0", False),
        ("", "", False),
    ],
)
def test_pci_addresses(first: str | None, second: str | None, same: bool) -> None:
    assert same_device(first, second) == same


@pytest.mark.parametrize("code", [row.code for row in tables.xid_codes().codes])
def test_every_xid_of_the_table_has_its_severity(code: int) -> None:
    row = next(row for row in tables.xid_codes().codes if row.code == code)
    (finding,) = [
        f
        for f in hardware_findings(host(kernel_events=(xid(code),)), settings())
        if f.id.startswith("gpu.xid")
    ]
    assert finding.severity == row.severity
    assert row.action in finding.fix
    assert finding.subject == f"Xid {code} on 0000:38:00.0"


def test_xids_are_counted_and_the_last_line_shown() -> None:
    lines = (xid(94, text="first line"), xid(94, text="last line"))
    (finding,) = [
        f
        for f in hardware_findings(host(kernel_events=lines), settings())
        if f.id.startswith("gpu.xid")
    ]
    assert "2 times since boot" in finding.message
    assert finding.evidence == "last line"


def test_fatal_xids_on_two_cards_are_two_refusals() -> None:
    events = (xid(119, 2), xid(62, 5))
    assert ids(hardware_findings(host(kernel_events=events), settings()), "refuse") == [
        "gpu.xid-fatal",
        "gpu.xid-fatal",
    ]


def test_a_missing_card_does_not_hide_another_ones_errors() -> None:
    events = (xid(79, 7), xid(62, 3))
    found = hardware_findings(host(7, kernel_events=events), settings())
    assert ids(found, "refuse") == ["gpu.fallen-off", "gpu.xid-fatal"]


# ---- clocks and shares ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, True),
        ({"clock_memory_mhz": 6751}, False),
        ({"clock_memory_mhz": 6750}, True),
        ({"performance_state": "P2"}, False),
        ({"performance_state": "P8"}, False),
        ({"utilization_percent": 4}, False),
        ({"utilization_percent": None}, False),
        ({"clock_memory_max_mhz": None}, False),
        ({"clock_memory_mhz": None}, False),
    ],
)
def test_memory_clocks_are_judged_of_cards_at_work(changes: dict[str, Any], said: bool) -> None:
    busy = {"performance_state": "P0", "utilization_percent": 5, "clock_memory_mhz": 405,
            "clock_memory_max_mhz": 9001}  # fmt: skip
    found = hardware_findings(host(changed={2: busy | changes}), settings())
    assert ("gpu.memory-clock-low" in ids(found, "warn")) == said


@pytest.mark.parametrize(
    ("vllm", "args", "refused"),
    [
        # Of 45,472 MiB 4,000 are 8.8%: 0.9 leaves room for them, 0.92 does not.
        ("0.33.0", {}, True),
        ("0.20.2", {}, False),
        ("0.33.0", {"gpu-memory-utilization": 0.9}, False),
        ("0.20.2", {"gpu-memory-utilization": 0.92}, True),
    ],
)
def test_an_orphan_is_measured_by_the_share_of_the_version(
    vllm: str, args: dict[str, Any], refused: bool
) -> None:
    process = GpuProcess(4711, "python", 4000, "")
    held = host(changed={2: {"processes": (process,), "memory_used_mib": 4001}})
    found = hardware_findings(held, settings(vllm, {"tensor-parallel-size": 8, **args}))
    assert ("gpu.orphan-memory" in ids(found, "refuse")) == refused
    assert ("gpu.foreign-process" in ids(found, "warn")) != refused


@pytest.mark.parametrize(
    ("kind", "options", "found"),
    [
        ("ext4", ("rw",), []),
        ("overlay", ("rw",), []),
        ("xfs", ("rw", "noexec"), ["disk.noexec"]),
        ("tmpfs", ("rw",), ["disk.volatile"]),
        ("nfs4", ("rw", "noexec"), ["disk.noexec", "disk.network"]),
        ("fuse.sshfs", ("rw",), ["disk.network"]),
        ("fuseblk", ("rw",), []),
    ],
)
def test_the_file_system_that_models_lie_on(
    kind: str, options: tuple[str, ...], found: list[str]
) -> None:
    mounted = host(llm_mount=Mount("/srv", "/dev/md0", kind, options))
    said = hardware_findings(mounted, settings())
    assert [one.id for one in said if one.id.startswith("disk.")] == found
    assert all(f"/dev/md0 on /srv type {kind}" in one.evidence for one in said
               if one.id.startswith("disk."))  # fmt: skip
