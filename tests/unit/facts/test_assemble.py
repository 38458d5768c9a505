"""From a directory of raw outputs to what the host is."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from pyinfra_deploy.facts import raw
from pyinfra_deploy.facts.assemble import assemble
from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.hardware import Hardware, NumaNode, Package
from pyinfra_deploy.facts.raw import RawOutput

FIXTURES = Path(__file__).parent / "fixtures"
HOSTS = FIXTURES / "hosts"


def host(name: str) -> Hardware:
    return assemble(name, raw.read_directory(HOSTS / name))


def changed(**outputs: RawOutput | None) -> Hardware:
    """The good host with some outputs replaced; None takes one away."""
    known = {name.replace("-", "_").replace(".", "_"): name for name in raw.NAMES}
    found = raw.read_directory(HOSTS / "l20")
    for name, output in outputs.items():
        if output is None:
            del found[known[name]]
        else:
            found[known[name]] = output
    return assemble("l20", found)


def test_a_host_with_everything() -> None:
    found = host("l20")
    assert found.unread == ()
    assert found.failure is None
    assert (len(found.gpus), found.attached_gpus) == (8, 8)
    assert {gpu.compute_capability for gpu in found.gpus} == {(8, 9)}
    assert [gpu.numa_node for gpu in found.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert found.gpus[2].processes[0].unit == "session-12.scope"
    assert found.topology is not None
    assert found.topology.links[0][1] == "PIX"
    # The library was upgraded under the loaded module: the next start of nvidia-smi will fail.
    assert (found.driver_version, found.loaded_module_version) == ("535.216.03", "535.216.03")
    assert (found.library_version, found.installed_module_version) == ("535.230.02", "535.230.02")
    assert (found.cuda_version, found.cuda_compat_version) == ("12.2", "12.8")
    assert found.open_kernel_module is False
    assert (found.cpu_model, found.cpu_count) == ("Intel(R) Xeon(R) Platinum 8469C", 128)
    assert found.numa == (
        NumaNode(0, "0-31,64-95", 527936512 * 1024), NumaNode(1, "32-63,96-127", 528482304 * 1024),
    )  # fmt: skip
    assert found.memory_total_bytes == 1056418816 * 1024
    assert found.disk_free_bytes == 14082634158080
    assert (found.os_id, found.os_version) == ("ubuntu", "22.04")
    assert found.kernel == "5.15.0-130-generic"
    assert (found.iommu_enabled, found.iommu_passthrough) == (True, True)
    # 00:1c.0 has ACS too, but no GPU is below it.
    assert found.acs_enabled_bridges == ("0000:15:01.0",)
    assert found.pci_gpus is not None
    assert (len(found.pci_gpus), found.pci_gpus[2].link_width) == (8, 4)
    assert [event.code for event in found.kernel_events if event.code] == [63, 95, 79]
    assert (found.max_map_count, found.max_map_count_file) == (65530, "/etc/sysctl.d/90-own.conf")
    assert found.packages == (
        Package("cuda-compat-12-8", "570.124.06-0ubuntu1", False, False),
        Package("libnvidia-compute-535", "535.230.02-0ubuntu0.22.04.3", False, True),
        Package("nvidia-container-toolkit", "1.17.4-1", False, False),
        Package("nvidia-dkms-535", "535.230.02-0ubuntu0.22.04.3", False, False),
        Package("nvidia-driver-535", "535.230.02-0ubuntu0.22.04.3", True, False),
    )
    assert (found.board_vendor, found.board_name) == ("Supermicro", "X13DEG-OA")
    assert (found.system_vendor, found.system_name) == ("Supermicro", "SYS-421GE-TNRT")
    assert (found.bmc_present, found.nvidia_smi_conf_present) == (True, True)
    assert found.pythons == ("/usr/bin/python3.10", "/usr/bin/python3.12")


def test_every_field_of_a_full_host_is_filled() -> None:
    """A field that no parser fills would be one that planning waits for in vain."""
    found = host("l20")
    empty = {
        field.name
        for field in dataclasses.fields(Hardware)
        if getattr(found, field.name) in (None, ())
    }
    assert empty == {"failure", "unread"}


def test_a_mismatch_tells_both_versions() -> None:
    found = host("mismatch")
    assert found.failure is not None
    assert found.failure.kind == "mismatch"
    assert (found.library_version, found.loaded_module_version) == ("570.190", "570.181")
    assert found.open_kernel_module is True
    assert "570.190" in found.kernel_events[0].text
    unread = dict(found.unread)
    assert (
        unread["nvidia-smi-q-x.xml"] == "Failed to initialize NVML: Driver/library version mismatch"
    )
    assert unread["lscpu.json"] == "was not collected"
    # One cause, told once.
    assert "nvidia-smi-topo-m.txt" not in unread


def test_a_hang() -> None:
    found = host("hang")
    assert found.failure is not None
    assert (found.failure.kind, found.gpus) == ("hang", ())
    assert "12 seconds" in found.failure.text


def test_an_empty_host_is_unread_and_no_crash() -> None:
    found = assemble("none", {})
    # Where no packages are known, what would upgrade them is no question.
    of_packages = {raw.HOLDS, raw.APT_CONFIG, raw.APT_POLICY}
    assert {name for name, _ in found.unread} == set(raw.NAMES) - of_packages
    assert found.gpus == ()
    assert (found.iommu_enabled, found.bmc_present, found.pci_gpus) == (None, None, None)


def test_the_query_stands_in_for_the_xml() -> None:
    found = changed(nvidia_smi_q_x_xml=None)
    assert len(found.gpus) == 8
    assert (found.failure, found.driver_version, found.cuda_version) == (None, "535.216.03", "12.2")
    assert "known from --query-gpu only" in dict(found.unread)["nvidia-smi-q-x.xml"]
    cut = changed(nvidia_smi_q_x_xml=RawOutput('<?xml version="1.0" ?>\n<nvidia_smi_log>\n<gpu>'))
    assert (len(cut.gpus), cut.failure) == (8, None)


def test_half_an_xml_alone_is_a_failure() -> None:
    text = (FIXTURES / "smi/535-cut.xml").read_text()
    found = changed(nvidia_smi_q_x_xml=RawOutput(text), nvidia_smi_query_gpu_csv=None)
    assert found.failure is not None
    assert (found.failure.kind, found.gpus) == ("truncated", ())


def test_a_query_that_failed_shows_the_cause_without_the_xml() -> None:
    said = RawOutput("No devices were found\n", 6)
    found = changed(nvidia_smi_q_x_xml=None, nvidia_smi_query_gpu_csv=said)
    assert found.failure is not None
    assert found.failure.kind == "no-devices"


def test_windows_is_said() -> None:
    text = (FIXTURES / "smi/552-windows.xml").read_text()
    found = changed(nvidia_smi_q_x_xml=RawOutput(text), nvidia_smi_query_gpu_csv=None)
    assert found.failure is not None
    assert found.failure.kind == "unreadable"
    assert "Windows" in found.failure.text


def test_a_topology_of_other_gpus_is_not_taken() -> None:
    text = (FIXTURES / "topo/sixteen.txt").read_text()
    found = changed(nvidia_smi_topo_m_txt=RawOutput(text))
    assert found.topology is None
    assert dict(found.unread)["nvidia-smi-topo-m.txt"] == "it has 16 GPUs, but 8 are described"


def test_a_command_that_failed_is_told_with_its_words() -> None:
    found = changed(lscpu_json=RawOutput("", 127, "lscpu is not installed"))
    assert dict(found.unread) == {
        "lscpu.json": "failed with exit status 127: lscpu is not installed"
    }
    # Its nodes are known from /sys all the same.
    assert [node.cpus for node in found.numa] == ["0-31,64-95", "32-63,96-127"]


def test_the_disk_is_that_of_llm_root() -> None:
    outputs = raw.read_directory(HOSTS / "l20")
    assert assemble("l20", outputs, llm_root="/data/llm").disk_free_bytes == 395528564736


def test_directories(tmp_path: Path) -> None:
    shutil.copytree(HOSTS / "l20", tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    assert raw.hosts_of(tmp_path) == ("a",)
    with pytest.raises(UnreadableOutput, match="holds none of the files"):
        raw.read_directory(tmp_path / "b")
    with pytest.raises(UnreadableOutput, match="cannot be read"):
        raw.read_directory(tmp_path / "c")
    (tmp_path / "a" / "uname.txt.exit").write_text("what\n")
    (tmp_path / "a" / "df.txt").write_bytes(b"\xff\xfe\x00")
    found = dict(assemble("a", raw.read_directory(tmp_path / "a")).unread)
    assert set(found) == {"uname.txt", "df.txt"}


def test_what_is_written_is_what_was_read() -> None:
    outputs = raw.read_directory(HOSTS / "mismatch")
    files = raw.files_of(outputs)
    assert files["nvidia-smi-q-x.xml.exit"] == "18\n"
    assert "kernel-log.txt.exit" not in files
