"""What nvidia-smi says of GPUs, in the shapes of the drivers from 384 to 610."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.nvidia_csv import (
    fill,
    parse_compute_apps,
    parse_query_gpu,
    parse_remapped_rows,
)
from pyinfra_deploy.facts.nvidia_failure import failure_in, failure_of_run, what_it_is
from pyinfra_deploy.facts.nvidia_versions import (
    library_version,
    parse_gpu_list,
    parse_modinfo,
    parse_module_version,
    parse_smi_version,
)
from pyinfra_deploy.facts.nvidia_xml import CutShort, SmiReport, parse_smi_xml

FIXTURES = Path(__file__).parent / "fixtures"


def smi(name: str) -> SmiReport:
    return parse_smi_xml((FIXTURES / "smi" / f"{name}.xml").read_text())


def query(name: str) -> str:
    return (FIXTURES / "query" / name).read_text()


def test_a_host_of_eight_with_its_slow_link_and_its_hot_card() -> None:
    report = smi("535-eight-l20")
    assert (report.driver_version, report.cuda_version) == ("535.216.03", "12.2")
    assert report.attached_gpus == len(report.gpus) == 8
    assert report.failure is None
    assert report.doubts == ()
    assert {gpu.name for gpu in report.gpus} == {"NVIDIA L20"}
    assert [gpu.index for gpu in report.gpus] == list(range(8))
    good, narrow, hot = report.gpus[0], report.gpus[2], report.gpus[5]
    assert good.pci_address == "0000:16:00.0"
    assert good.uuid == "GPU-5eed0000-1f2e-4a3b-8c4d-00aa00000000"
    assert (good.memory_total_mib, good.memory_used_mib, good.memory_reserved_mib) == (
        46068,
        1,
        612,
    )
    assert (good.pcie_generation, good.pcie_generation_max) == (1, 4)
    assert (good.pcie_generation_device_max, good.pcie_generation_host_max) == (4, 5)
    assert (good.pcie_width, good.pcie_width_max) == (16, 16)
    assert (good.fan_present, good.fan_percent) == (False, None)
    assert (good.ecc_enabled, good.ecc_uncorrected_volatile) == (True, 0)
    assert (good.power_limit_watts, good.power_draw_watts) == (350.0, 34.9)
    assert (good.temperature_c, good.temperature_slowdown_c, good.temperature_shutdown_c) == (
        34, 89, 92,
    )  # fmt: skip
    assert good.throttle_reasons == ("gpu_idle",)
    assert (good.virtualization, good.recovery_action) == ("none", "none")
    assert (good.architecture, good.performance_state) == ("Ada Lovelace", "P8")
    assert good.compute_capability is None  # the XML does not tell it
    assert good.mig_enabled is None
    assert narrow.pcie_width == 4
    assert [(p.pid, p.name, p.used_memory_mib) for p in narrow.processes] == [
        (41002, "VLLM::Worker_TP2", 40112)
    ]
    assert hot.throttle_reasons == ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown")
    assert (hot.performance_state, hot.utilization_percent, hot.temperature_c) == ("P0", 100, 90)


def test_the_oldest_shape_with_fewer_cards_than_it_counts() -> None:
    report = smi("384-two-of-four")
    assert (report.driver_version, report.cuda_version) == ("384.145", None)
    assert (report.attached_gpus, len(report.gpus)) == (4, 2)
    assert report.doubts == (("attached_gpus", "4 GPUs are attached, but 2 are described"),)
    first, second = report.gpus
    assert (first.ecc_uncorrected_volatile, first.ecc_uncorrected_aggregate) == (1, 3)
    assert first.retired_pages_pending is True
    assert first.memory_reserved_mib is None
    assert first.persistence_enabled is False
    assert (first.power_limit_watts, first.power_default_limit_watts) == (240.0, 250.0)
    assert second.throttle_reasons == ("sw_power_cap", "sw_thermal_slowdown")
    assert second.pcie_width == 4


def test_shapes_between_them() -> None:
    workstation = smi("418-no-doctype").gpus[0]
    assert (workstation.fan_present, workstation.fan_percent) == (True, 33)
    assert (workstation.ecc_enabled, workstation.ecc_uncorrected_volatile) == (None, None)
    assert [gpu.mig_enabled for gpu in smi("470-mig-on").gpus] == [True, False]
    # The memory of the MIG device is not taken for the card's.
    assert smi("470-mig-on").gpus[0].memory_total_mib == 40536
    inside = smi("510-passthrough").gpus[0]
    assert (inside.virtualization, inside.retired_pages_pending) == ("pass-through", False)
    assert inside.pci_address == "0000:00:06.0"
    guest = smi("550-vgpu-guest").gpus[0]
    assert (guest.virtualization, guest.pcie_width, guest.persistence_enabled) == (
        "vgpu", None, None,
    )  # fmt: skip


def test_errors_and_margins_of_newer_drivers() -> None:
    first, second = smi("590-errors").gpus
    assert (first.ecc_uncorrected_volatile, first.ecc_uncorrected_aggregate) == (2, 5)
    assert (first.remapped_rows_pending, first.remapped_rows_failed) == (True, False)
    assert (second.remapped_rows_pending, second.remapped_rows_failed) == (False, True)
    assert (first.recovery_action, second.recovery_action) == ("reset", "drain p2p")
    # T.Limit thresholds are margins below zero: they are no temperatures.
    assert (first.temperature_slowdown_c, first.temperature_margin_c) == (None, 47)
    # The average is N/A there, the instant value is not.
    assert second.power_draw_watts == 35.02
    assert (second.power_limit_watts, second.power_default_limit_watts) == (300.0, 350.0)


def test_the_renamed_versions_of_the_610_driver() -> None:
    report = smi("610-renamed")
    assert (report.driver_version, report.cuda_version) == ("610.44.01", "13.3")


def test_a_card_that_is_lost_within_a_complete_document() -> None:
    report = smi("570-one-lost")
    assert report.failure is not None
    assert (report.failure.kind, report.failure.pci_address) == ("gpu-lost", "0000:27:00.0")
    assert report.gpus[1].temperature_c is None
    assert report.gpus[1].fan_percent is None
    assert any("persistence_mode" in where for where, _ in report.doubts)
    assert report.gpus[0].temperature_c == 34


def test_names_of_processes_that_break_the_xml() -> None:
    processes = smi("570-process-names").gpus[0].processes
    assert [process.name for process in processes][:2] == ["<unknown>", 'sh -c "a && b > /tmp/c"']
    assert [process.used_memory_mib for process in processes] == [1024, None, 12]


def test_what_stands_around_the_document_is_told() -> None:
    report = smi("570-warning-after")
    assert len(report.gpus) == 1
    assert report.doubts == (
        ("text around the document", "WARNING: infoROM is corrupted at gpu 0000:16:00.0"),
    )


def test_a_fragment_says_that_it_is_one() -> None:
    report = smi("fragment")
    assert report.gpus[0].name == "NVIDIA A40"
    assert {where for where, _ in report.doubts} == {
        "driver_version", "attached_gpus", "GPU 0: fb_memory_usage",
    }  # fmt: skip


def test_half_an_xml_is_told_from_a_damaged_one() -> None:
    with pytest.raises(CutShort, match="cut short"):
        smi("535-cut")
    whole = (FIXTURES / "smi/535-eight-l20.xml").read_text()
    with pytest.raises(UnreadableOutput, match="damaged") as error:
        parse_smi_xml(whole.replace("</uuid>", "", 1))
    assert not isinstance(error.value, CutShort)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("hello", "no XML"),
        ('<?xml version="1.0" ?><html></html></nvidia_smi_log>', "damaged"),
        ('<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><nvidia_smi_log></nvidia_smi_log>',
         "entities"),
        ("==============NVSMI LOG==============\nTimestamp : x\n", "nvidia-smi -q -x"),
        ("| NVIDIA-SMI 550.1  Driver Version: 550.1  CUDA Version: 12.4 |", "the table"),
    ],
)  # fmt: skip
def test_other_texts_are_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(UnreadableOutput, match=said):
        parse_smi_xml(text)


def test_windows_is_recognised() -> None:
    with pytest.raises(UnreadableOutput, match=r"Windows .driver model WDDM."):
        smi("552-windows")


def test_the_query_with_new_names() -> None:
    gpus, driver, doubts = parse_query_gpu(query("new-names.csv"))
    assert (len(gpus), driver, doubts) == (8, "535.216.03", ())
    assert {gpu.compute_capability for gpu in gpus} == {(8, 9)}
    assert gpus[2].pcie_width == 4
    assert gpus[5].throttle_reasons == ("hw_slowdown", "hw_thermal_slowdown")
    assert (gpus[0].fan_present, gpus[0].mig_enabled) == (False, None)
    assert gpus[7].pci_address == "0000:d8:00.0"
    # It agrees with the XML of the same host in all that both tell.
    for one, other in zip(smi("535-eight-l20").gpus, gpus, strict=True):
        assert (one.uuid, one.pci_address, one.memory_total_mib, one.pcie_width) == (
            other.uuid, other.pci_address, other.memory_total_mib, other.pcie_width,
        )  # fmt: skip


def test_the_query_with_old_names_and_without_units() -> None:
    (first, second), driver, doubts = parse_query_gpu(query("old-names.csv"))
    assert (driver, doubts) == ("470.256.02", ())
    assert first.throttle_reasons == ("sw_thermal_slowdown",)
    assert (first.fan_present, second.fan_present, second.fan_percent) == (False, True, 41)
    assert (first.retired_pages_pending, second.ecc_enabled) == (True, False)
    (plain,), _, _ = parse_query_gpu(query("nounits.csv"))
    assert (plain.memory_total_mib, plain.compute_capability) == (81559, (9, 0))


def test_unknown_error_in_the_query_is_no_value_and_is_told() -> None:
    gpus, _, doubts = parse_query_gpu(query("unknown-error.csv"))
    assert (gpus[1].temperature_c, gpus[1].memory_used_mib) == (None, None)
    assert [where for where, _ in doubts] == [
        "GPU 1: temperature.gpu", "GPU 1: persistence_mode", "GPU 1: memory.used",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (query("bad-property.txt"), "does not know the property clocks_event_reasons.active"),
        ("index, name\n", "cut short"),
        ("index, name, uuid\n0, NVIDIA L20\n", "2 cells under 3 names"),
        ("0, NVIDIA L20, 46068 MiB\n", "no header line"),
        ("", "no header line"),
    ],
)
def test_a_query_that_cannot_be_read(text: str, said: str) -> None:
    with pytest.raises(UnreadableOutput, match=said):
        parse_query_gpu(text)


def test_the_query_fills_what_the_xml_lacks_and_no_more() -> None:
    report, (others, _, _) = smi("535-eight-l20"), parse_query_gpu(query("new-names.csv"))
    filled = fill(report.gpus, others)
    assert {gpu.compute_capability for gpu in filled} == {(8, 9)}
    assert filled[5].temperature_c == 90
    assert fill(report.gpus, ()) == report.gpus


@pytest.mark.parametrize(
    ("text", "kind", "address"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure "
         "that the latest NVIDIA driver is installed and running.", "no-driver", None),
        ("NVIDIA-SMI has failed because it couldn't communicate\nwith the NVIDIA driver. Make\n",
         "no-driver", None),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 1.2",
         "mismatch", None),
        ("No devices were found\n", "no-devices", None),
        ("Unable to determine the device handle for GPU 0000:5A:00.0: GPU is lost. Reboot the "
         "system to recover this GPU", "gpu-lost", "0000:5a:00.0"),
        ("Unable to determine the device handle for GPU0000:98:00.0: Unknown Error",
         "unknown-error", "0000:98:00.0"),
        ("Unable to determine the device handle for gpu 0001:00:00.0: Insufficient Permissions"
         .replace("gpu", "GPU"), "unknown-error", "0001:00:00.0"),
        ("Failed to initialize NVML: Unknown Error\n", "unknown-error", None),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that",
         "no-library", None),
        ("x: load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file",
         "no-library", None),
        ("bash: nvidia-smi: command not found", "not-installed", None),
        ("all is well", None, None),
    ],
)  # fmt: skip
def test_failure_texts(text: str, kind: str | None, address: str | None) -> None:
    found = failure_in(text)
    assert (found and found.kind) == kind
    assert (found and found.pci_address) == address


def test_failures_by_exit_status() -> None:
    hang = failure_of_run("", 124, "no answer")
    assert hang is not None
    assert (hang.kind, hang.text) == ("hang", "no answer")
    absent = failure_of_run("", 127, "nvidia-smi is not installed")
    assert absent is not None
    assert absent.kind == "not-installed"
    assert failure_of_run("<xml>", 0, "") is None


def test_versions() -> None:
    old = "NVIDIA-SMI version  : 570.181\nNVML version : 570.181\nDRIVER version : 570.181\nCUDA Version : 12.8\n"  # noqa: E501
    assert parse_smi_version(old) == ("570.181", "12.8")
    new = (
        "NVIDIA-SMI version  : 610.44.01\nDRIVER version      : Deprecated, see KMD\n"
        "CUDA version        : Deprecated, see UMD\nKMD version         : 610.44.01\n"
        "CUDA UMD version    : 13.3\n"
    )
    assert parse_smi_version(new) == ("610.44.01", "13.3")
    closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.216.03  Fri Oct 25 2024\n"
    assert parse_module_version(closed) == ("535.216.03", False)
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.181  Release Build  (x)"
    assert parse_module_version(opened) == ("570.181", True)
    assert parse_modinfo("570.181\n") == "570.181"
    assert parse_modinfo("filename: /lib/x.ko\nversion:        570.181\n") == "570.181"
    assert library_version(("/a/libnvidia-ml.so.1", "/a/libnvidia-ml.so.570.190")) == "570.190"
    assert library_version(("/a/libnvidia-ml.so.570.190", "/b/libnvidia-ml.so.535.1.2")) is None
    for parse in (parse_smi_version, parse_module_version, parse_modinfo):
        with pytest.raises(UnreadableOutput):
            parse("something else")


def test_the_list_of_gpus_with_mig_devices() -> None:
    text = (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5eed0000-1f2e)\n"
        "  MIG 3g.20gb     Device  0: (UUID: MIG-5eed0001-1f2e)\n"
        "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-5eed0002-1f2e)\n"
    )
    assert [(gpu.index, gpu.mig) for gpu in parse_gpu_list(text)] == [(0, ("3g.20gb",)), (1, ())]
    assert what_it_is(text) == "the output of `nvidia-smi -L`"
    for bad in ("", "GPU 0: half a li"):
        with pytest.raises(UnreadableOutput):
            parse_gpu_list(bad)


@pytest.mark.parametrize(
    ("cells", "known"),
    [("No, Yes", (False, True)), ("1, 0", (True, False)), ("[N/A], [N/A]", (None, None))],
)
def test_remapped_rows_by_their_own_query(
    cells: str, known: tuple[bool | None, bool | None]
) -> None:
    text = f"gpu_uuid, remapped_rows.pending, remapped_rows.failure\nGPU-a, {cells}\n"
    assert parse_remapped_rows(text) == {"GPU-a": known}


def test_processes_by_their_own_query() -> None:
    head = "gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
    assert parse_compute_apps(head) == {}
    found = parse_compute_apps(head + "GPU-a, 7, py, a b, 12 MiB\nGPU-a, 8, x, [N/A]\n")
    assert [(one.pid, one.name, one.used_memory_mib) for one in found["GPU-a"]] == [
        (7, "py, a b", 12),
        (8, "x", None),
    ]


@pytest.mark.parametrize(
    "text",
    ["", "No devices were found\n", 'Field "gpu_uuid" is not a valid field to query.\n',
     "gpu_uuid, pid, process_name, used_gpu_memory [MiB]\nGPU-a, x, y, 1 MiB\n",
     "gpu_uuid, pid\nGPU-a\n"],
)  # fmt: skip
def test_what_is_no_list_of_processes_is_said(text: str) -> None:
    with pytest.raises(UnreadableOutput):
        parse_compute_apps(text)
    with pytest.raises(UnreadableOutput):
        parse_remapped_rows(text.replace("pid", "remapped_rows.pending") + "GPU-a, maybe\n")
