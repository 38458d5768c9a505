import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from lab.lifecycle import show_gpu_state
from lab.standins.driver import dmesg, modinfo
from lab.standins.gpu_states import STATES
from lab.standins.install import (
    COPIED_MODULES,
    PROGRAMS,
    bind_sysctls_script,
    shown_files,
    standin_files,
)
from lab.standins.l20 import DRIVER
from lab.standins.nvidia_smi import answer
from pyinfra_deploy.facts.kernel_log import parse_kernel_log
from pyinfra_deploy.facts.nvidia_versions import parse_modinfo, parse_module_version


def ask(*argv: str, state: str = "ok", host: str = "gpu1") -> str:
    text, status = answer(list(argv), host, state)
    assert status == 0, text
    return text


def test_list() -> None:
    lines = ask("-L").splitlines()
    assert len(lines) == 8
    assert lines[0].startswith("GPU 0: NVIDIA L20 (UUID: GPU-")
    assert len(set(lines)) == 8
    assert ask("-L", host="gpu2").splitlines()[0] != lines[0]


def test_reset() -> None:
    lines = ask("--gpu-reset", "-i", "0,1").splitlines()
    assert len(lines) == 3
    assert all(line.endswith("was successfully reset.") for line in lines[:2])


def test_query() -> None:
    text = ask("--query-gpu=index,memory.total,fan.speed,compute_cap,clocks.sm", "--format=csv")
    header, first, *rest = text.splitlines()
    assert header == "index, memory.total [MiB], fan.speed [%], compute_cap, clocks.sm [MHz]"
    assert first == "0, 46068 MiB, [N/A], 8.9, 210 MHz"
    assert len(rest) == 7


def test_query_without_header_and_units_for_one_card() -> None:
    text = ask("-i", "3", "--query-gpu=index,memory.total,power.limit,name",
               "--format=csv,noheader,nounits")  # fmt: skip
    assert text == "3, 46068, 350.00, NVIDIA L20\n"


def test_memory_adds_up() -> None:
    text = ask("--query-gpu=memory.total,memory.reserved,memory.used,memory.free",
               "--format=csv,noheader,nounits")  # fmt: skip
    for line in text.splitlines():
        total, reserved, used, free = (int(word) for word in line.split(","))
        # nvidia-smi rounds each for itself.
        assert abs(total - reserved - used - free) <= 1


@pytest.mark.parametrize("name", ["nonsense", "slot", ""])
def test_unknown_property(name: str) -> None:
    text, status = answer([f"--query-gpu=index,{name}", "--format=csv"], "gpu1", "ok")
    assert status == 2
    assert text.startswith(f'Field "{name}" is not a valid field to query.')


def test_old_names_of_event_reasons() -> None:
    query = "--query-gpu=clocks_throttle_reasons.hw_thermal_slowdown"
    rows = ask(query, "--format=csv,noheader", state="hot").splitlines()
    assert rows.count("Active") == 1


def test_xml() -> None:
    root = ElementTree.fromstring(ask("-q", "-x"))  # noqa: S314 - our own
    gpus = root.findall("gpu")
    assert [root.findtext("attached_gpus"), len(gpus)] == ["8", 8]
    assert gpus[0].findtext("product_name") == "NVIDIA L20"
    assert gpus[0].findtext("fan_speed") == "N/A"
    assert gpus[0].findtext("fb_memory_usage/total") == "46068 MiB"
    assert gpus[0].findtext("pci/pci_gpu_link_info/link_widths/current_link_width") == "16x"
    assert gpus[0].get("id") == gpus[0].findtext("pci/pci_bus_id")
    assert f"UUID: {gpus[0].findtext('uuid')})" in ask("-L")


def test_topology_is_symmetric_and_ansi_underlined() -> None:
    header, *rows = ask("topo", "-m").split("\n\n")[0].splitlines()
    assert header.startswith("\t\x1b[4mGPU0\t")
    assert header.endswith("\x1b[0m")
    matrix = [row.split("\t")[1:11] for row in rows]
    assert len(matrix) == 10
    assert [list(column) for column in zip(*matrix, strict=True)] == matrix
    assert {cell.strip() for row in matrix for cell in row} == {"X", "PIX", "NODE", "SYS"}
    assert rows[0].split("\t")[-4:] == ["0-31,64-95", "0", "", "N/A"]


def test_topology_of_a_machine_with_one_numa_node() -> None:
    text, _ = answer(["topo", "-m"], "gpu1", "ok", ("0-1",))
    _, *rows = text.split("\n\n")[0].splitlines()
    assert {cell.strip() for row in rows for cell in row.split("\t")[1:11]} == {"X", "PIX", "NODE"}
    assert {tuple(row.split("\t")[-4:]) for row in rows[:8]} == {("0-1", "0", "", "N/A")}


def test_table_lines_are_of_one_width() -> None:
    lines = ask().splitlines()
    assert {len(line) for line in lines[1:] if line} == {91}
    assert sum("NVIDIA L20" in line for line in lines) == 8


@pytest.mark.parametrize("state", [name for name, state in STATES.items() if "says" in state])
@pytest.mark.parametrize("argv", [[], ["-L"], ["-q", "-x"], ["topo", "-m"]])
def test_total_failures_answer_everything_alike(state: str, argv: list[str]) -> None:
    text, status = answer(argv, "gpu1", state)
    assert text == STATES[state]["says"]
    assert status == STATES[state]["exit"] != 0


def test_every_state_is_described_and_does_something() -> None:
    for name, state in STATES.items():
        assert state["about"], name
        assert name == "ok" or set(state) - {"about"}, name
        for changes in state.get("cards", {}).values():
            query = f"--query-gpu={','.join(changes)}"
            assert answer([query, "--format=csv"], "gpu1", name)[1] == 0, name


def test_seven_cards() -> None:
    seven, eight = ask("-L", state="seven").splitlines(), ask("-L").splitlines()
    assert len(seven) == 7
    assert [line[:6] for line in seven] == [f"GPU {index}:" for index in range(7)]
    uuids = [line.split("UUID")[1] for line in eight]
    del uuids[5]
    assert [line.split("UUID")[1] for line in seven] == uuids
    assert len(ask("topo", "-m", state="seven").splitlines()[1].split("\t")) == 14


def test_one_narrow_link() -> None:
    rows = ask("--query-gpu=pcie.link.width.current", "--format=csv,noheader", state="narrow")
    assert rows.splitlines() == ["16", "16", "4", "16", "16", "16", "16", "16"]


def test_what_the_stand_in_does_not_know_it_says() -> None:
    text, status = answer(["nvlink", "-s"], "gpu1", "ok")
    assert status == 2
    assert "stand-in" in text


def test_the_installed_program_runs_by_itself(tmp_path: Path) -> None:
    for name, copy in standin_files().items():
        if name.startswith("/usr/lib/fleet-lab/"):
            target = tmp_path / name.removeprefix("/usr/lib/fleet-lab/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(copy.data)
    result = subprocess.run(
        [sys.executable, "-I", str(tmp_path), "nvidia-smi", "-L"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len(result.stdout.splitlines()) == 8


def test_every_stand_in_is_called_by_its_name() -> None:
    for path in PROGRAMS:
        text = standin_files()[path].data.decode()
        assert text.endswith(f' {Path(path).name} "$@"\n')
        assert standin_files()[path].mode == 0o755


def test_what_the_kernel_tells_of_the_driver() -> None:
    healthy = shown_files("ok")
    assert parse_module_version(healthy["nvidia/version"]) == (DRIVER, False)
    assert parse_modinfo(modinfo(["-F", "version", "nvidia"], STATES["ok"])[0]) == DRIVER
    assert modinfo(["nouveau"], STATES["ok"])[1] == 1
    assert shown_files("no-driver")["nvidia/version"] == ""
    mismatch = STATES["mismatch"]
    loaded, _ = parse_module_version(shown_files("mismatch")["nvidia/version"])
    on_disk = parse_modinfo(modinfo(["-F", "version", "nvidia"], mismatch)[0])
    assert on_disk != loaded == DRIVER
    events, unreadable = parse_kernel_log(dmesg(STATES["fallen-off"]))
    assert [event.code for event in events if event.code] == [79]
    assert not unreadable


def test_a_state_is_shown_and_taken_back(tmp_path: Path) -> None:
    show_gpu_state(tmp_path, "ok")
    assert (tmp_path / "nvidia/version").is_file()
    show_gpu_state(tmp_path, "no-driver")
    assert not (tmp_path / "nvidia/version").exists()
    assert (tmp_path / "gpu-state").read_text() == "no-driver\n"


def test_an_orphan_is_the_process_that_asks() -> None:
    text = ask("--query-compute-apps=pid,used_memory", "--format=csv,noheader", state="orphan")
    assert text == f"{os.getppid()}, 40213 MiB\n"
    root = ElementTree.fromstring(ask("-q", "-x", state="orphan"))  # noqa: S314 - our own
    assert [one.text for one in root.iter("pid")] == [str(os.getppid())]


def test_the_program_needs_only_what_python3_minimal_has() -> None:
    root = Path(__file__).resolve().parents[3]
    modules = {
        line.split()[1].split(".")[0]
        for name in COPIED_MODULES
        for line in (root / name).read_text().splitlines()
        if line.startswith(("import ", "from "))
    }
    assert modules <= {
        "__future__",
        "lab",
        "os",
        "pathlib",
        "signal",
        "sys",
        "time",
        "typing",
        "zlib",
    }


def test_sysctl_stand_ins_reset_at_boot_and_stay_in_the_host() -> None:
    script = bind_sysctls_script({"vm.max_map_count": "65530"})
    assert "echo 65530 > /run/fleet-lab/sysctl/vm.max_map_count" in script
    assert (
        "mount --bind /run/fleet-lab/sysctl/vm.max_map_count /proc/sys/vm/max_map_count" in script
    )
    unit = standin_files()["/etc/systemd/system/fleet-lab-sysctls.service"].data.decode()
    assert "Before=systemd-sysctl.service" in unit
