"""Whatever is in the files, parsers read it or refuse it in words; none raises anything else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.facts import (
    apt_packages,
    host_parts,
    kernel_log,
    nvidia_csv,
    nvidia_failure,
    nvidia_versions,
    nvidia_xml,
    pci,
    processes,
    raw,
    topology,
)
from pyinfra_deploy.facts.assemble import assemble
from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.raw import RawOutput

if TYPE_CHECKING:
    from collections.abc import Callable

FIXTURES = Path(__file__).parent / "fixtures"
FILES = sorted(path for path in FIXTURES.rglob("*") if path.is_file())
PARSERS: tuple[Callable[[str], Any], ...] = (
    nvidia_xml.parse_smi_xml, nvidia_csv.parse_query_gpu, topology.parse_topology,
    kernel_log.parse_kernel_log, nvidia_failure.failure_in, nvidia_failure.what_it_is,
    nvidia_versions.parse_smi_version, nvidia_versions.parse_module_version,
    nvidia_versions.parse_modinfo, nvidia_versions.parse_gpu_list, host_parts.parse_lscpu,
    host_parts.parse_numa_nodes, host_parts.parse_meminfo, host_parts.parse_df,
    host_parts.parse_os_release, host_parts.parse_uname, host_parts.parse_dmi,
    host_parts.parse_max_map_count, host_parts.max_map_count_file, host_parts.parse_paths,
    pci.parse_pci_gpus, pci.parse_acs, apt_packages.parse_dpkg, apt_packages.parse_holds,
    apt_packages.parse_apt_config, apt_packages.parse_policy, processes.parse_processes,
)  # fmt: skip
# Of the fixtures in each directory; those of hosts go through assemble.
OWN: dict[str, tuple[Callable[[str], Any], ...]] = {
    "smi": (nvidia_xml.parse_smi_xml,),
    "query": (nvidia_csv.parse_query_gpu,),
    "topo": (topology.parse_topology,),
    "kernel": (kernel_log.parse_kernel_log,),
}
# A step that is no divisor of line lengths, so that cuts fall everywhere.
STEP = 53
NASTY = (
    "", "\0", "\n\n\n", "\ufeff", "\t\t\t\n", "<", "<?xml", "<nvidia_smi_log></nvidia_smi_log>",
    "<nvidia_smi_log><gpu/></nvidia_smi_log>", "[" * 5000, '{"lscpu":' * 2000, "{}", "null",
    '{"lscpu": [{"field": 1, "children": [[]]}]}', "GPU0\t" * 500, "\tGPU0\tCPU Affinity\nGPU0\tX",
    "index\n\n", "index, name\n,\n", "NVRM: Xid (PCI:", "9" * 5000, "node 0 cpus: 999 \u0663",
    "\tGPU0\tGPU99999999\tCPU Affinity\n", "Filesystem 1-blocks Available Mounted on\na ٣ ٣ /\n",
    "CPU(s): \u00b2", "\u00b2\tx\t/\n", "MemTotal: \u0663 kB",
)  # fmt: skip


def survives(text: str, parsers: tuple[Callable[[str], Any], ...] = PARSERS) -> None:
    for parse in parsers:
        try:
            parse(text)
        except UnreadableOutput as error:
            if not str(error):
                pytest.fail(f"{parse} refuses without a word")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FIXTURES)))
def test_each_fixture_cut_everywhere(path: Path) -> None:
    text = path.read_text()
    own = OWN.get(path.parent.name)
    for length in range(0, len(text), STEP):
        if own:
            survives(text[:length], own)
        else:
            assemble("cut", {path.name: RawOutput(text[:length])})
    # The other parsers need to see a few.
    for length in range(0, len(text), max(STEP, len(text) // 8)):
        survives(text[:length])


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_nasty_texts(text: str) -> None:
    survives(text)
    assemble("nasty", {name: RawOutput(text) for name in raw.NAMES})


def test_bytes_changed_at_random() -> None:
    chance = random.Random(20250304)  # noqa: S311 - the same faults at each run
    outputs = raw.read_directory(FIXTURES / "hosts" / "l20")
    for _ in range(60):
        spoiled = {}
        for name, output in outputs.items():
            characters = list(output.text)
            for _ in range(chance.randint(0, 4)):
                if characters:
                    at = chance.randrange(len(characters))
                    characters[at] = chance.choice("\0\t\n <>/&;:.,=-x9٣\ufffd")
            spoiled[name] = RawOutput("".join(characters), chance.choice((0, 0, 0, 1, 124, 127)))
        assemble("spoiled", spoiled)


def test_a_cut_never_invents_a_gpu() -> None:
    """A cut XML has no GPUs at all, and a cut table of the query never more or other ones."""
    text = (FIXTURES / "smi/535-eight-l20.xml").read_text()
    end = text.rindex("</nvidia_smi_log>")
    for length in range(0, end, 997):
        with pytest.raises(UnreadableOutput):
            nvidia_xml.parse_smi_xml(text[:length])
    table = (FIXTURES / "query/new-names.csv").read_text()
    whole = {gpu.uuid for gpu in nvidia_csv.parse_query_gpu(table)[0]}
    for length in range(0, len(table), 31):
        try:
            gpus, _, _ = nvidia_csv.parse_query_gpu(table[:length])
        except UnreadableOutput:
            continue
        assert {gpu.uuid for gpu in gpus} <= whole
