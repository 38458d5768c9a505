"""The collector as `fleet facts collect` runs it: the file's text given to a bare interpreter."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fleet_host import collect

from pyinfra_deploy.facts import raw
from pyinfra_deploy.facts.assemble import assemble
from pyinfra_deploy.facts.raw import RawOutput, from_document

SOURCE = Path(collect.__file__).read_text(encoding="utf-8")
FIXTURES = Path(__file__).parent / "fixtures"
# Of `dpkg -L libpython3.11-minimal` and its built-in modules; threading is what subprocess needs.
IN_PYTHON_MINIMAL = {"glob", "os", "re", "subprocess", "sys", "threading", "time", "__future__"}
# No host of a test has what these ask for, and they would ask the machine of the tests.
QUIET = ("dmesg", "journalctl", "apt-cache", "apt-config", "apt-mark", "dpkg-query", "modinfo")


def program(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.write_text("#!/bin/sh\n" + text, encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory that comes first in PATH, with quiet stand-ins for slow programs."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in QUIET:
        program(directory, name, "exit 0\n")
    return directory


def run(programs: Path, *arguments: str, source: str = SOURCE) -> tuple[dict[str, RawOutput], str]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source, *arguments],
        capture_output=True,
        text=True,
        env=dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}"),
        timeout=30,
        check=True,
    )
    assert done.stderr == ""
    return from_document(done.stdout), done.stdout


def smi(programs: Path, xml: Path) -> None:
    hosts = FIXTURES / "hosts" / "l20"
    program(
        programs,
        "nvidia-smi",
        f"""case "$*" in
"-q -x") cat {xml} ;;
"topo -m") cat {hosts}/nvidia-smi-topo-m.txt ;;
--version) cat {hosts}/nvidia-smi-version.txt ;;
*clocks_event*) cat {FIXTURES}/query/bad-property.txt; exit 2 ;;
*compute_cap*) cat {hosts}/nvidia-smi-query-gpu.csv ;;
*) exit 2 ;;
esac
""",
    )


def test_it_collects_everything_that_is_read(programs: Path) -> None:
    smi(programs, FIXTURES / "hosts/l20/nvidia-smi-q-x.xml")
    found, _ = run(programs)
    assert set(found) == set(raw.NAMES)
    host = assemble("here", found)
    assert (len(host.gpus), host.driver_version) == (8, "535.216.03")
    # The first query asks with names that this driver does not know.
    assert {gpu.compute_capability for gpu in host.gpus} == {(8, 9)}
    assert host.topology is not None
    # Of this machine, whatever it is.
    assert host.kernel == os.uname().release
    assert host.memory_total_bytes
    assert host.disk_free_bytes
    assert host.cpu_count
    assert host.numa
    assert host.max_map_count
    assert host.os_id


def test_half_an_xml_has_the_other_questions_asked(programs: Path) -> None:
    """Also the pid of a process that only --query-compute-apps names is looked up."""
    smi(programs, FIXTURES / "smi/535-cut.xml")
    path = programs / "nvidia-smi"
    uuid = "GPU-5eed0000-0000-4000-8000-000000000000"
    apps = f"gpu_uuid, pid, process_name, used_gpu_memory [MiB]\\n{uuid}, {os.getpid()}, py, 9 MiB"
    rows = f"gpu_uuid, remapped_rows.pending, remapped_rows.failure\\n{uuid}, No, Yes"
    path.write_text(path.read_text().replace(
        "*clocks_event*)",
        f'--query-compute-apps*) printf "{apps}\\n" ;;\n'
        f'--query-remapped-rows*) printf "{rows}\\n" ;;\n*clocks_event*)',
    ))  # fmt: skip
    found, _ = run(programs)
    assert set(found) == {*raw.NAMES, *raw.INSTEAD_OF_XML}
    assert (found[raw.SMI_REMAPPED].exit, found[raw.SMI_APPS].exit) == (0, 0)
    assert found[raw.PROCESSES].text.startswith(f"{os.getpid()}\t")


def test_a_host_without_a_driver(programs: Path) -> None:
    program(programs, "nvidia-smi", 'echo "No devices were found"; exit 6\n')
    found, _ = run(programs)
    # Nothing that answers is left to be asked more.
    assert set(found) == set(raw.NAMES)
    host = assemble("here", found)
    assert host.failure is not None
    assert host.failure.kind == "no-devices"


def test_it_ends_in_time_while_nvidia_smi_cannot_be_killed(programs: Path) -> None:
    """A process that keeps the pipe open stands in for one that a signal does not reach."""
    program(programs, "nvidia-smi", "setsid sleep 6 &\nwait\n")
    quick = SOURCE.replace("COMMAND_SECONDS = 12.0", "COMMAND_SECONDS = 1.0")
    quick = quick.replace("TOTAL_SECONDS = 15.0", "TOTAL_SECONDS = 3.0")
    assert quick.count("SECONDS = 1.0") == quick.count("SECONDS = 3.0") == 1
    began = time.monotonic()
    found, _ = run(programs, source=quick)
    assert time.monotonic() - began < 5.0
    assert found[raw.SMI_XML].exit == 124
    host = assemble("here", found)
    assert host.failure is not None
    assert host.failure.kind == "hang"
    assert host.memory_total_bytes  # the rest is there


def test_secrets_and_serials_stay_on_the_host(programs: Path, tmp_path: Path) -> None:
    xml = tmp_path / "a.xml"
    text = (FIXTURES / "smi/570-process-names.xml").read_text()
    xml.write_text(text.replace("<minor_number>", "<pdi>0x12ab34cd</pdi><minor_number>", 1))
    smi(programs, xml)
    log = (FIXTURES / "kernel/dmesg.txt").read_text()
    (tmp_path / "log").write_text(
        log + "[ 1.0] nvidia net: mac 52:54:00:12:34:56 token=abc.def-ghi password=hunter2\n"
    )
    program(programs, "dmesg", f"cat {tmp_path}/log\n")
    program(
        programs,
        "apt-cache",
        'echo " 500 https://bob:s3cret@repo.example.com/ubuntu jammy/main amd64 Packages"\n',
    )
    found, printed = run(programs)
    for secret in (
        "1650223000000", "1650223000002", "1650223000005", "0x12ab34cd", "sk-abcdef", "52:54:00",
        "abc.def", "hunter2", "s3cret", "bob",
    ):  # fmt: skip
        assert secret not in printed, secret
    # What is needed is still there, and the XML is still one.
    host = assemble("here", found)
    assert host.gpus[0].uuid == "GPU-5eed0000-1f2e-4a3b-8c4d-00aa00000000"
    assert host.gpus[0].pci_address == "0000:16:00.0"
    assert [event.code for event in host.kernel_events if event.code] == [63, 95, 79]
    assert "repo.example.com" in found[raw.APT_POLICY].text


def test_uuids_are_masked_alike_everywhere_when_asked(programs: Path) -> None:
    smi(programs, FIXTURES / "hosts/l20/nvidia-smi-q-x.xml")
    found, printed = run(programs, "--mask-uuids")
    assert "5eed0000" not in printed
    host = assemble("here", found)
    assert len({gpu.uuid for gpu in host.gpus}) == 8
    # Still the same card in both outputs, so that one completes the other.
    assert {gpu.compute_capability for gpu in host.gpus} == {(8, 9)}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("0000:16:00.0 3D controller", True),
        ("GPU-5eed0000-1f2e-4a3b-8c4d-00aa00000000", True),
        ("NVRM: Xid (PCI:0000:38:00): 63, pid=1, Ch 00000008", True),
        ("BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro iommu=pt", True),
        ("<serial>N/A</serial>", True),
        ("apt-key=1", False),
        ("HF_TOKEN=hf_abcdefgh", False),
        ("--hf-token abc", False),
        ("--api-key=abc", False),
        ("Authorization: Bearer abc", False),
        ("rd.luks.key=/boot/key", False),
        ("Serial Number : 0123", False),
    ],
)
def test_what_masking_touches(text: str, kept: bool) -> None:
    masked = collect.mask(text)
    assert (masked == text) is kept
    assert kept or collect.MASKED in masked


def test_it_imports_only_what_python3_minimal_has() -> None:
    imported = set()
    for node in ast.walk(ast.parse(SOURCE)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert imported - {"collections.abc", "typing"} <= IN_PYTHON_MINIMAL


def test_its_names_are_those_that_are_read() -> None:
    """A misspelt name would be collected for nothing and reported as missing for ever."""
    spelt = set(re.findall(r'"([\w.-]+\.(?:txt|xml|csv|json)|os-release)"', SOURCE))
    assert spelt == {*raw.NAMES, *raw.INSTEAD_OF_XML}


def test_its_own_json_is_json() -> None:
    text = 'quote " back \\ tab \t newline \n null \0 umlaut ü smile \U0001f600 lone \udc80'
    import json

    assert json.loads(collect.json_text(text)) == text


def test_it_fits_one_argument() -> None:
    from pyinfra_deploy.facts.collected import CollectedOutputs

    command = str(CollectedOutputs().command(mask_uuids=True))
    assert len(command) < 100_000  # execve(2) takes 128 KiB in one argument
    assert command.count("--mask-uuids") == 1
