"""Every recorded output in $CORPUS/smi is read or refused in words; none crashes, none is misread.

What is read is compared with plain counts of the same text by other means than the parsers'.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from pyinfra_deploy.facts import raw
from pyinfra_deploy.facts.assemble import assemble
from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.kernel_log import parse_kernel_log
from pyinfra_deploy.facts.nvidia_failure import failure_in
from pyinfra_deploy.facts.nvidia_versions import parse_gpu_list, parse_smi_version
from pyinfra_deploy.facts.nvidia_xml import parse_smi_xml
from pyinfra_deploy.facts.raw import RawOutput
from pyinfra_deploy.facts.topology import parse_topology

CORPUS = os.environ.get("CORPUS")
DIRECTORY = Path(CORPUS or "/nonexistent") / "smi"
pytestmark = pytest.mark.skipif(
    not DIRECTORY.is_dir(), reason="CORPUS names no directory with recorded outputs (smi/)"
)

FILES = sorted(path for path in DIRECTORY.glob("*") if path.suffix in (".txt", ".xml"))
# The kinds of failure that the names of files tell of.
FAILURES = {
    "fail_container_libnvidia-ml-missing": "no-library",
    "fail_driver-comm": "no-driver",
    "fail_gpu-lost": "gpu-lost",
    "fail_handle-unknown-error": "unknown-error",
    "fail_mismatch": "mismatch",
    "fail_no-devices": "no-devices",
}


def of(prefix: str) -> pytest.MarkDecorator:
    found = [path for path in FILES if path.name.startswith(prefix)]
    return pytest.mark.parametrize("path", found, ids=lambda path: path.name)


def texts(tag: str, xml: str) -> list[str]:
    return re.findall(rf"<{tag}>\s*([^<]*?)\s*</{tag}>", xml)


def without_clocks(xml: str) -> str:
    return re.sub(r"<supported_clocks>.*?</supported_clocks>", "", xml, flags=re.DOTALL)


def test_every_file_has_a_test_of_its_kind() -> None:
    prefixes = ("L_", "dmesg_", "fail_", "nvlink-s_", "q-x_", "q_", "table_", "topo_", "version_")
    assert [path.name for path in FILES if not path.name.startswith(prefixes)] == []
    assert len(FILES) > 100


@of("q-x_")
def test_xml(path: Path) -> None:
    text = path.read_text(errors="replace")
    windows = re.search(r"<current_dm>(?:WDDM|TCC)</current_dm>", text)
    if windows:
        with pytest.raises(UnreadableOutput, match="Windows"):
            parse_smi_xml(text)
        return
    report = parse_smi_xml(text)
    assert len(report.gpus) == len(re.findall(r"<gpu id=", text)) > 0
    attached = texts("attached_gpus", text)
    assert report.attached_gpus == (int(attached[0]) if attached else None)
    differs = bool(attached) and int(attached[0]) != len(report.gpus)
    assert differs == any("are described" in why for _, why in report.doubts)
    assert [gpu.name for gpu in report.gpus] == texts("product_name", text)
    assert [gpu.uuid for gpu in report.gpus] == texts("uuid", text)
    assert texts("driver_version", text) == [
        one for one in [report.driver_version] if one is not None
    ]
    assert texts("cuda_version", text) == [one for one in [report.cuda_version] if one is not None]
    for gpu, xml in zip(report.gpus, without_clocks(text).split("<gpu id=")[1:], strict=True):
        memory = re.search(r"<fb_memory_usage>.*?<total>(\d+) MiB", xml, re.DOTALL)
        assert gpu.memory_total_mib == (int(memory.group(1)) if memory else None)
        width = re.search(r"<current_link_width>(\d+)x<", xml)
        assert gpu.pcie_width == (int(width.group(1)) if width else None)
        degrees = re.search(r"<gpu_temp>(\d+) C<", xml)
        assert gpu.temperature_c == (int(degrees.group(1)) if degrees else None)
        active = re.findall(r"<clocks_(?:event|throttle)_reason_(\w+)>Active<", xml)
        assert sorted(gpu.throttle_reasons) == sorted(active)
        assert sorted(p.pid for p in gpu.processes) == sorted(
            {int(pid) for pid in re.findall(r"<pid>(\d+)</pid>", xml)}
        )
        state = re.search(r"<performance_state>(P\d+)<", xml)
        assert gpu.performance_state == (state.group(1) if state else None)
        fan = re.search(r"<fan_speed>([^<]*)<", xml)
        assert gpu.fan_present == (None if fan is None else fan.group(1) != "N/A")


@of("topo_")
def test_topology(path: Path) -> None:
    text = path.read_text(errors="replace")
    try:
        found = parse_topology(text)
    except UnreadableOutput as error:
        # What is refused is damaged, as its name says, or no output of `topo -m`.
        damaged = ("spaces", "header-stripped", "malformed", "reformatted", "p2p")
        if not any(word in path.name for word in damaged):
            pytest.fail(f"refused although it is whole: {error}")
        return
    count = len(found.links)
    lines = [line for line in text.splitlines() if re.match(r"GPU\d+\t", line)]
    assert count == len(lines) > 0
    for one in range(count):
        assert found.links[one][one] == "X"
        for other in range(count):
            assert found.links[one][other] == found.links[other][one]
            assert found.nvlink_counts[one][other] == found.nvlink_counts[other][one]
    of_gpus = ["\t".join(line.split("\t")[1 : count + 1]) for line in lines]
    for name in ("PIX", "PXB", "PHB", "NODE", "SYS"):
        plain = sum(cells.count(name) for cells in of_gpus)
        assert plain == sum(row.count(name) for row in found.links)
    assert sum(len(re.findall(r"NV\d+", cells)) for cells in of_gpus) == sum(
        row.count("NV") for row in found.links
    )
    for line, cpus in zip(lines, found.cpu_affinity, strict=True):
        assert cpus is None or f"\t{cpus}\t" in line
    for line, node in zip(lines, found.numa_nodes, strict=True):
        assert node is None or re.search(rf"\t{node}(\t|$)", line)


@of("fail_")
def test_failure(path: Path) -> None:
    text = path.read_text(errors="replace")
    if "dmesg" in path.name:
        events, _ = parse_kernel_log(text)
        assert len(events) == text.count("NVRM:")
        return
    found = failure_in(text)
    assert found is not None
    (kind,) = {kind for prefix, kind in FAILURES.items() if path.name.startswith(prefix)}
    assert found.kind == kind
    address = re.search(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d", text)
    assert found.pci_address == (address.group().lower() if address else None)
    hardware = assemble("host", {raw.SMI_XML: RawOutput(text, 9)})
    assert hardware.failure == found
    assert hardware.gpus == ()


@of("dmesg_")
def test_kernel_lines(path: Path) -> None:
    text = path.read_text(errors="replace")
    events, unread = parse_kernel_log(text)
    assert unread == ()
    codes = [int(code) for code in re.findall(r"NVRM: Xid \([^)]*\): (\d+)", text)]
    assert [event.code for event in events if event.code is not None] == codes
    assert all(event.pci_address for event in events if event.code is not None)
    gone = " ".join(text.split()).count("fallen off the bus")
    assert sum("fallen off the bus" in event.text for event in events) == gone


@of("L_")
def test_list(path: Path) -> None:
    text = path.read_text()
    found = parse_gpu_list(text)
    assert len(found) == text.count("(UUID: GPU-")
    assert sum(len(gpu.mig) for gpu in found) == text.count("(UUID: MIG-")
    assert all(gpu.name for gpu in found)


@of("version_")
def test_version(path: Path) -> None:
    # The file's name tells the driver: version_CARD__DRIVER_SYSTEM.txt.
    driver, cuda = parse_smi_version(path.read_text())
    assert driver == path.stem.split("__")[1].split("_")[0]
    assert cuda is not None


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.name.startswith(("q_", "table_", "nvlink-s_"))],
    ids=lambda path: path.name,
)
def test_outputs_that_are_not_asked_for_are_refused_in_words(path: Path) -> None:
    text = path.read_text(errors="replace")
    with pytest.raises(UnreadableOutput) as error:
        parse_smi_xml(text)
    assert len(str(error.value)) > 10
    hardware = assemble("host", {raw.SMI_XML: RawOutput(text)})
    assert hardware.gpus == ()
    assert hardware.failure is not None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_under_any_name_no_file_crashes(path: Path) -> None:
    text = path.read_text(errors="replace")
    for name in raw.NAMES:
        assemble("host", {name: RawOutput(text)})
    for length in range(0, len(text), max(97, len(text) // 12)):
        assemble("host", {name: RawOutput(text[:length]) for name in raw.NAMES[:3]})
