"""Every bad state of a host: the one right refusal, with its line and its fix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyinfra_deploy.facts.hardware import (
    DriverFailure,
    GpuProcess,
    Hardware,
    KernelEvent,
    Package,
    PciGpu,
    Topology,
)
from pyinfra_deploy.planning.hardware_findings import (
    hardware_findings,
)
from tests.unit.planning_compat.hosts import BUSES, host, ids, settings, xid


def one(index: int, **changes: Any) -> Hardware:
    return host(changed={index: changes})


def every(**changes: Any) -> Hardware:
    return host(changed=dict.fromkeys(range(8), changes))


def failed(kind: Any, text: str, **more: Any) -> Hardware:
    return host(gpus=(), failure=DriverFailure(kind, text), driver_version=None, **more)


WORKER = GpuProcess(4711, "VLLM::Worker_TP3", 40213, "")
OURS = GpuProcess(4712, "VLLM::Worker_TP3", 41000, "llm-engine@main.service")
PROOF = GpuProcess(4713, "python", 41000, "llm-proof@main.service")
SMALL = GpuProcess(800, "/usr/bin/python3", 310, "user@1000.service")

# A host -> the one refusal, a part of its evidence, a part of its fix.
BAD: dict[str, tuple[Hardware, str, str, str]] = {
    "no driver": (failed("no-driver", "couldn't communicate"), "gpu.no-driver", "couldn't", "dkms"),
    "not installed": (
        failed("not-installed", "nvidia-smi: command not found"),
        "gpu.no-driver",
        "not found",
        "nvidia-driver-NNN-server",
    ),
    "no library": (failed("no-library", "couldn't find"), "gpu.no-driver", "find", "modprobe"),
    "nouveau": (
        failed("no-driver", "x", pci_gpus=(PciGpu("0000:16:00.0", "nouveau"),)),
        "gpu.no-driver",
        "1 GPUs on the PCI bus",
        "dkms",
    ),
    "mismatch": (
        failed(
            "mismatch",
            "Driver/library version mismatch",
            loaded_module_version="570.133.20",
            library_version="570.172",
        ),
        "gpu.driver-mismatch",
        "loaded module 570.133.20; library 570.172",
        "gpu_driver: hold",
    ),
    "mismatch before anything fails": (
        host(library_version="580.95.05"),
        "gpu.driver-mismatch",
        "library 580.95.05",
        "reboot",
    ),
    "lost": (
        failed("gpu-lost", "GPU is lost", kernel_events=(xid(79),)),
        "gpu.lost",
        "GPU is lost; NVRM: Xid (PCI:0000:38:00): 79",
        "power cycle",
    ),
    "unknown error": (
        failed("unknown-error", "Unknown Error"),
        "gpu.lost",
        "Unknown",
        "power cycle",
    ),
    "hang": (failed("hang", "no answer in 30 s"), "gpu.hang", "30 s", "reboot"),
    "no devices": (
        failed("no-devices", "No devices were found", pci_gpus=(PciGpu("0000:16:00.0"),)),
        "gpu.none",
        "No devices",
        "lspci",
    ),
    "cut short": (failed("truncated", "</gpu> is missing"), "gpu.unread", "missing", "again"),
    "nothing at all": (host(gpus=()), "gpu.none", "expected_gpus: 8", "lspci"),
    "nothing read": (
        host(gpus=(), unread=(("nvidia-smi-q-x.xml", "the file is missing"),)),
        "gpu.unread",
        "file is missing",
        "again",
    ),
    "seven": (host(7), "gpu.too-few", "lists 7", "lspci"),
    "seven of eight on the bus": (
        host(7, pci_gpus=tuple(PciGpu(f"0000:{bus}:00.0", "nvidia") for bus in BUSES)),
        "gpu.too-few",
        "0000:d8:00.0 is on the PCI bus, bound to nvidia",
        "dmesg",
    ),
    "one fell off": (
        host(7, kernel_events=(xid(79, 7), xid(45, 7))),
        "gpu.fallen-off",
        "79",
        "power cycle",
    ),
    "one fell off without a number": (
        host(
            7,
            kernel_events=(
                KernelEvent("NVRM: GPU 0000:d8:00.0: GPU has fallen off the bus.", None, None),
            ),
        ),
        "gpu.fallen-off",
        "fallen off",
        "power cycle",
    ),
    "one did not start": (host(7, kernel_events=(xid(143, 7),)), "gpu.too-few", "lists 7", "lspci"),
    "mixed": (one(3, name="NVIDIA L40S"), "gpu.mixed-models", "GPU 3", "engine.gpus"),
    "another model": (
        every(name="NVIDIA L40S"),
        "gpu.wrong-model",
        "L40S",
        "which host",
    ),
    "mig": (one(2, mig_enabled=True), "gpu.mig-enabled", "MIG", "-i 2 -mig 0"),
    "ecc": (
        host(
            changed={1: {"ecc_uncorrected_volatile": 3, "ecc_uncorrected_aggregate": 3}},
            kernel_events=(xid(48, 1), xid(63, 1), xid(94, 1)),
        ),
        "gpu.ecc-uncorrected",
        "uncorrected since load 3",
        "reset",
    ),
    "remap pending": (
        one(1, remapped_rows_pending=True, ecc_uncorrected_volatile=1),
        "gpu.row-remap-pending",
        "row remapping pending",
        "reset",
    ),
    "remap failed": (
        one(1, remapped_rows_failed=True, remapped_rows_pending=True),
        "gpu.row-remap-failed",
        "row remapping failed",
        "replace",
    ),
    "retirement pending": (
        one(1, retired_pages_pending=True),
        "gpu.page-retirement-pending",
        "pending",
        "reset",
    ),
    "hot": (
        one(
            6,
            temperature_c=93,
            throttle_reasons=("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown"),
        ),
        "gpu.thermal-slowdown",
        "93 C, slows down at 92 C",
        "chassis",
    ),
    "brake": (
        one(6, throttle_reasons=("hw_slowdown", "hw_power_brake_slowdown")),
        "gpu.power-brake",
        "hw_power_brake",
        "power supplies",
    ),
    "x4": (
        one(2, pcie_width=4, performance_state="P0", utilization_percent=60),
        "gpu.pcie-width",
        "x4 of x16",
        "reseat",
    ),
    "bad slot hides behind the maximum": (
        one(2, pcie_width=8, pcie_width_max=8),
        "gpu.pcie-width",
        "x8 of x8",
        "reseat",
    ),
    "orphan": (
        one(3, processes=(WORKER,), memory_used_mib=40214),
        "gpu.orphan-memory",
        "pid 4711 VLLM::Worker_TP3, 40213 MiB, no unit",
        "kill 4711",
    ),
    "taken by nobody": (one(0, memory_used_mib=40213), "gpu.memory-in-use", "40213", "fuser"),
    "fatal Xid": (host(kernel_events=(xid(119),)), "gpu.xid-fatal", "119", "driver"),
    "fatal Xids of one card": (
        host(kernel_events=(xid(62), xid(119), xid(45))),
        "gpu.xid-fatal",
        "62",
        "reboot",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_one_refusal_for_one_cause(name: str) -> None:
    hardware, identifier, evidence, fix = BAD[name]
    refusals = [f for f in hardware_findings(hardware, settings()) if f.severity == "refuse"]
    assert [f.id for f in refusals] == [identifier]
    assert evidence in refusals[0].evidence
    assert fix in refusals[0].fix
    assert refusals[0].host == "gpu01"
    assert refusals[0].source


def test_a_healthy_host_has_only_notes() -> None:
    assert ids(hardware_findings(host(), settings())) == ["cooling.by-chassis"]


def test_two_causes_are_two_refusals() -> None:
    both = host(
        changed={
            1: {"ecc_uncorrected_volatile": 1},
            2: {"pcie_width": 4, "performance_state": "P0"},
        }
    )
    assert ids(hardware_findings(both, settings()), "refuse") == [
        "gpu.ecc-uncorrected",
        "gpu.pcie-width",
    ]


def test_many_cards_are_one_finding() -> None:
    (finding,) = [
        f
        for f in hardware_findings(every(persistence_enabled=False), settings())
        if f.id == "gpu.persistence-off"
    ]
    assert finding.subject == "GPUs 0-7"
    assert finding.evidence.endswith("and 4 more")
    some = host(changed={i: {"mig_enabled": True} for i in (0, 1, 2, 5, 7)})
    assert ids(hardware_findings(some, settings()), "refuse") == ["gpu.mig-enabled"]
    assert hardware_findings(some, settings())[0].subject == "GPUs 0-2, 5 and 7"
    single = hardware_findings(one(2, mig_enabled=True), settings())[0]
    assert single.subject == "GPU 2 (0000:38:00.0)"


LESSER: dict[str, tuple[Hardware, str, str]] = {
    "software thermal": (
        one(1, throttle_reasons=("sw_thermal_slowdown",)),
        "gpu.thermal-limit",
        "warn",
    ),
    "slowdown unsaid": (one(1, throttle_reasons=("hw_slowdown",)), "gpu.hardware-slowdown", "warn"),
    "power cap": (one(1, throttle_reasons=("sw_power_cap",)), "gpu.power-cap", "note"),
    "near the limit": (one(1, temperature_c=88), "gpu.temperature-near-limit", "warn"),
    "margin": (
        one(1, temperature_margin_c=3, temperature_slowdown_c=None),
        "gpu.temperature-near-limit",
        "warn",
    ),
    "margin enough": (one(1, temperature_margin_c=40, temperature_c=91), "", ""),
    "power limit": (one(1, power_limit_watts=250.0), "gpu.power-limit-low", "warn"),
    "persistence": (every(persistence_enabled=False), "gpu.persistence-off", "warn"),
    "display": (one(0, display_active=True), "gpu.display-active", "note"),
    "old errors": (one(1, ecc_uncorrected_aggregate=2), "gpu.ecc-history", "note"),
    "ecc off": (every(ecc_enabled=False, memory_total_mib=49140), "gpu.ecc-off", "note"),
    "recovery": (one(1, recovery_action="reset"), "gpu.recovery-asked", "warn"),
    "vgpu": (every(virtualization="vgpu"), "gpu.virtual", "warn"),
    "pass-through": (every(virtualization="pass-through"), "", ""),
    "narrow while idle": (one(2, pcie_width=4), "gpu.pcie-width-idle", "note"),
    "generation under load": (
        one(2, pcie_generation=3, performance_state="P0"),
        "gpu.pcie-generation",
        "note",
    ),
    "small process": (
        one(3, processes=(SMALL,), memory_used_mib=311),
        "gpu.foreign-process",
        "warn",
    ),
    "a process of which nothing is known": (
        one(3, processes=(replace(WORKER, unit=None),), memory_used_mib=40214),
        "gpu.process-unknown",
        "warn",
    ),
    "our engine and a proof": (one(3, processes=(OURS, PROOF), memory_used_mib=41001), "", ""),
    "our engine and a small one": (
        one(3, processes=(OURS, SMALL), memory_used_mib=41311),
        "gpu.foreign-process",
        "warn",
    ),
    "a name that lies": (every(memory_total_mib=49152 * 2), "gpu.name-misleads", "warn"),
    "a capability that lies": (one(1, compute_capability=(9, 0)), "gpu.name-misleads", "warn"),
    "conf file": (host(nvidia_smi_conf_present=True), "cooling.nvidia-smi-conf", "note"),
    "acs": (host(acs_enabled_bridges=("0000:15:01.0",)), "pcie.acs-enabled", "warn"),
    "iommu": (host(iommu_enabled=True), "pcie.iommu-enabled", "warn"),
    "iommu in passthrough": (host(iommu_enabled=True, iommu_passthrough=True), "", ""),
    "packages": (
        host(packages=(Package("nvidia-driver-580-server", "580.65.06", False, True),)),
        "gpu.packages-not-held",
        "warn",
    ),
    "packages held": (
        host(packages=(Package("nvidia-driver-580-server", "580.65.06", True, True),)),
        "",
        "",
    ),
    "map count": (host(max_map_count=65530), "host.max-map-count", "note"),
    "unread": (host(unread=(("lscpu.json", "not JSON"),)), "facts.unread", "warn"),
    "other driver on disk": (
        host(installed_module_version="595.71.05"),
        "gpu.driver-changes-at-boot",
        "warn",
    ),
    "an application's Xid": (host(kernel_events=(xid(31),)), "gpu.xid-note", "note"),
    "a Xid to look at": (host(kernel_events=(xid(94),)), "gpu.xid-warning", "warn"),
    "a new Xid": (host(kernel_events=(xid(999),)), "gpu.xid-unknown", "warn"),
    "other kernel lines": (
        host(kernel_events=(KernelEvent("NVRM: loading NVIDIA UNIX x86_64 Kernel Module"),)),
        "",
        "",
    ),
}


@pytest.mark.parametrize("name", LESSER)
def test_what_is_not_refused(name: str) -> None:
    hardware, identifier, severity = LESSER[name]
    found = [
        (f.id, f.severity)
        for f in hardware_findings(hardware, settings())
        if f.id != "cooling.by-chassis"
    ]
    assert found == ([(identifier, severity)] if identifier else [])


def test_nvlink_makes_isolation_harmless() -> None:
    links = tuple(tuple("X" if i == j else "NV" for j in range(8)) for i in range(8))
    linked = host(iommu_enabled=True, topology=Topology(links=links))  # type: ignore[arg-type]
    assert "pcie.iommu-enabled" not in ids(hardware_findings(linked, settings()))
    alone = settings(args={"tensor-parallel-size": 1}, gpu_host={})
    assert "pcie.iommu-enabled" not in ids(hardware_findings(host(iommu_enabled=True), alone))


@pytest.mark.parametrize(
    ("width", "state", "busy", "expected", "finding"),
    [
        (4, "P0", 0, None, "gpu.pcie-width"),
        (4, "P2", 80, None, "gpu.pcie-width"),
        (4, "P8", 0, None, "gpu.pcie-width-idle"),
        (4, None, None, None, "gpu.pcie-width-idle"),
        (8, "P0", 0, None, "gpu.pcie-width-half"),
        (8, "P0", 0, 16, "gpu.pcie-width"),
        (8, "P0", 0, 8, None),
        (16, "P0", 0, None, None),
        (None, "P0", 0, 16, None),
    ],
)
def test_pcie_width_is_judged_under_load(
    width: int | None, state: str | None, busy: int | None, expected: Any, finding: str | None
) -> None:
    hardware = one(
        2,
        pcie_width=width,
        performance_state=state,
        utilization_percent=busy,
        pcie_generation=4,
    )
    asked = settings(gpu_host={"expected_pcie_width": expected})
    found = [i for i in ids(hardware_findings(hardware, asked)) if "pcie" in i]
    assert found == ([finding] if finding else [])


def test_a_board_with_narrow_slots_is_expected_by_setting() -> None:
    narrow = every(pcie_width=8, pcie_width_max=8, performance_state="P0", pcie_generation=4)
    assert "gpu.pcie-width-half" in ids(hardware_findings(narrow, settings(gpu_host={})), "warn")
    agreed = settings(gpu_host={"expected_pcie_width": 8})
    assert not [i for i in ids(hardware_findings(narrow, agreed)) if "pcie" in i]


def test_the_share_decides_how_much_an_orphan_may_hold() -> None:
    hardware = one(3, processes=(replace(SMALL, used_memory_mib=6000),), memory_used_mib=6001)
    usual = settings(args={"tensor-parallel-size": 8})
    assert ids(hardware_findings(hardware, usual), "refuse") == ["gpu.orphan-memory"]
    modest = settings(args={"tensor-parallel-size": 8, "gpu-memory-utilization": 0.5})
    assert ids(hardware_findings(hardware, modest), "refuse") == []
    assert "gpu.foreign-process" in ids(hardware_findings(hardware, modest), "warn")


def test_an_orphan_of_unknown_size_is_judged_by_the_memory_in_use() -> None:
    silent = replace(WORKER, used_memory_mib=None)
    full = one(3, processes=(silent,), memory_used_mib=40214)
    assert ids(hardware_findings(full, settings()), "refuse") == ["gpu.orphan-memory"]
    empty = one(3, processes=(silent,), memory_used_mib=200)
    assert ids(hardware_findings(empty, settings()), "refuse") == []
    beside = one(3, processes=(silent, OURS), memory_used_mib=41200)
    assert ids(hardware_findings(beside, settings()), "refuse") == []
