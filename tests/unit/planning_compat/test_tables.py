"""The tables are read strictly, quickly, and say what the sources say."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from pyinfra_deploy.planning import tables
from pyinfra_deploy.planning.tables import TableError, parse, rows

READERS = (
    tables.vllm_versions,
    tables.cuda_drivers,
    tables.architectures,
    tables.quantisations,
    tables.gpu_models,
    tables.engine_arguments,
    tables.xid_codes,
)
VLLM = """\
versions:
  - {vllm: "0.8.5", python: ">=3.9,<3.13", torch: "2.6.0", cuda: "12.4", source: a wheel}
  - {vllm: "0.9.2", python: ">=3.9", torch: "2.7.0", cuda: "12.6", source: a wheel}
fp8_block_cut:
  {refused_through: "0.26.0", works_from: "0.33.0", doubt: not tried, source: wheels}
"""
CUDA = """\
majors:
  - {cuda: 12, driver: "525.60.13", forward_driver: "470.57.02", oldest_capability: "5.0",
     source: a page}
releases: [{cuda: "12.4", driver: "550.54.14"}]
releases_source: notes
capabilities: [{capability: "8.9", cuda: "11.8"}]
capabilities_source: notes
forward_compatibility: {supported_on: some, library_path: /usr/local, source: a page}
"""
ARCHITECTURES = """\
model_types: {qwen3: Qwen3ForCausalLM}
architectures:
  - names: Qwen3ForCausalLM, Qwen3MoeForCausalLM
    absent_in: "0.8.3"
    first: "0.8.4"
    source: a wheel
"""
CAPABILITY = """\
bfloat16: {capability: "8.0", source: a guide}
engine: {capability: "7.0", source: a guide}
methods:
  - method: fp8
    native: "8.9"
    minimum: [{vllm: "0.5.3", capability: "8.0"}, {vllm: "0.14.1", capability: "7.5"}]
    source: wheels
"""
GPUS = """\
models:
  - {name: L20, capability: "8.9", memory_mib: 46068, passive: true, pcie_width: 16, source: logs}
"""
ARGUMENTS = """\
source: wheels
arguments:
  - {name: dtype, first: "0.5.3"}
  - {name: swap-space, first: "0.5.3", last: "0.17.1", gone: "0.18.0", advice: remove it}
combinations:
  - {when: {dtype: float16}, severity: note, message: it may, fix: do not, source: a page}
"""
XIDS = """\
source: a page
codes:
  - {code: 48, about: memory, severity: refuse, meaning: bad, action: reset}
  - {code: 79, about: bus, severity: refuse, meaning: gone, action: power cycle}
"""
FINDINGS = """\
findings:
  - id: gpu.hang
    title: It hangs
    severity: [refuse]
    meaning: The driver is stuck in the kernel.
    fix: Reboot the host.
    source: a page
"""
KINDS: dict[str, tuple[type[rows.Row], str]] = {
    "vllm": (rows.VllmVersions, VLLM),
    "cuda": (rows.CudaDrivers, CUDA),
    "architectures": (rows.Architectures, ARCHITECTURES),
    "capability": (rows.Quantisations, CAPABILITY),
    "gpus": (rows.GpuModels, GPUS),
    "arguments": (rows.EngineArguments, ARGUMENTS),
    "xids": (rows.XidCodes, XIDS),
    "findings": (rows.Findings, FINDINGS),
}
# table, old, new, what the error says
WRONG = [
    ("vllm", 'vllm: "0.8.5"', "vllm: 0.8", "in quotes"),
    ("vllm", 'vllm: "0.8.5"', 'vllm: "new"', "not a version"),
    ("vllm", 'vllm: "0.8.5"', 'vllm: "0.9.2"', "ascend"),
    ("vllm", ">=3.9,<3.13", "3.9 to 3.13", "not a range"),
    ("vllm", 'cuda: "12.4"', 'cuda: "12"', "two numbers"),
    ("vllm", ", source: a wheel}\n  - {vllm", "}\n  - {vllm", "versions[vllm 0.8.5].source"),
    ("vllm", "source: a wheel}\n  - {vllm", 'source: ""}\n  - {vllm', "source"),
    ("vllm", "torch:", "torhc:", "torhc"),
    ("vllm", "versions:", "version:", "version"),
    ("vllm", 'torch: "2.6.0"', 'torch: "2.6.0", torch: "2.7.0"', "key twice: torch"),
    ("cuda", '"525.60.13"', '"R525"', "driver"),
    ("cuda", "cuda: 12,", 'cuda: "12",', "majors"),
    ("cuda", 'cuda: "12.4"', 'cuda: "13.0"', "no major version"),
    ("cuda", "releases_source: notes\n", "", "releases_source"),
    ("architectures", "Qwen3ForCausalLM}", "Qwen4ForCausalLM}", "Qwen4ForCausalLM"),
    ("architectures", ", Qwen3MoeForCausalLM", ", Qwen3ForCausalLM", "twice"),
    ("architectures", 'first: "0.8.4"', 'first: "0.8.2"', "ascend"),
    ("architectures", 'first: "0.8.4"', 'first: "0.8.4"\n    gone: "0.9.0"', "go together"),
    ("capability", '"0.14.1"', '"0.5.2"', "ascend"),
    ("capability", 'native: "8.9"', "native: 8.9", "native"),
    ("capability", "method: fp8", "method: fp8\n    methd: fp8", "methd"),
    ("gpus", "pcie_width: 16", "pcie_width: 12", "pcie_width"),
    ("gpus", "memory_mib: 46068", "memory_mib: 46068.5", "memory_mib"),
    ("gpus", "passive: true", 'passive: "yes"', "passive"),
    ("gpus", "passive: true", "passive: yes", "yes needs quotes"),
    ("gpus", "name: L20", "name: 2027-01-31", "needs quotes"),
    ("arguments", '{name: dtype, first: "0.5.3"}', "{name: dtype}", "first version, or never"),
    ("arguments", ", advice: remove it", "", "advice"),
    ("arguments", "when: {dtype", "when: {dtpye", "dtpye"),
    ("arguments", "severity: note", "severity: bad", "severity"),
    ("arguments", "float16}", "'> 3'}", "neither a value nor"),
    ("xids", "code: 79", "code: 48", "ascend"),
    ("xids", "about: bus", "about: buss", "about"),
    ("findings", "[refuse]", "[stop]", "severity"),
    ("findings", "[refuse]", "[]", "severity"),
    ("findings", "id: gpu.hang", "id: GPU hang", "id"),
    ("findings", "    fix: Reboot the host.\n", "", "fix"),
]


@pytest.mark.parametrize("name", KINDS)
def test_good_tables_are_read(name: str) -> None:
    kind, text = KINDS[name]
    parse(text, kind, f"{name}.yml")


@pytest.mark.parametrize(("name", "old", "new", "says"), WRONG)
def test_wrong_tables_are_refused_in_words(name: str, old: str, new: str, says: str) -> None:
    kind, text = KINDS[name]
    assert old in text
    with pytest.raises(TableError, match=f"{name}.yml") as caught:
        parse(text.replace(old, new, 1), kind, f"{name}.yml")
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["", "- a", "a: [", "%", "versions: \x00"])
def test_what_is_no_table(text: str) -> None:
    with pytest.raises(TableError):
        parse(text, rows.VllmVersions, "vllm.yml")


def test_a_table_is_read_once() -> None:
    assert tables.vllm_versions() is tables.vllm_versions()


@pytest.mark.parametrize("reader", [*READERS, tables.findings])
def test_every_row_says_where_it_is_from(reader: Any) -> None:
    for name, value in reader():
        if isinstance(value, tuple):
            for row in value:
                own = getattr(row, "source", None)
                assert own or getattr(reader(), f"{name}_source", None) or reader().source, row


def test_spans_between_samples_are_unknown() -> None:
    span = rows.Span.model_validate(
        {"absent_in": "0.8.3", "first": "0.8.5", "last": "0.16.0", "gone": "0.17.1"}
    )
    places = {
        "0.8.3": "before",
        "0.5.0": "before",
        "0.8.4": "unknown",
        "0.8.5": "there",
        "0.12.0": "there",
        "0.16.0": "there",
        "0.17.0": "unknown",
        "0.17.1": "gone",
        "1.0": "gone",
    }
    assert {text: span.place(Version(text)) for text in places} == places


# No part of the project; the tables have to say what was measured there.
FACTS = Path(os.environ.get("FACTS", "none"))
measured = pytest.mark.skipif(
    not (FACTS / "vllm_flags.tsv").is_file(), reason="$FACTS names no directory with vllm_flags.tsv"
)


@measured
def test_arguments_are_those_measured() -> None:
    with (FACTS / "vllm_flags.tsv").open(encoding="utf-8") as file:
        measured_rows = list(csv.DictReader(file, delimiter="\t"))
    table = {row.name: row for row in tables.engine_arguments().arguments}
    for measured_row in measured_rows:
        row = table[measured_row.pop("flag").lstrip("-")]
        for version, seen in measured_row.items():
            place = row.place(Version(version))
            assert (place == "there" and not row.never) == (seen in "YD"), (row.name, version)
            deprecated = row.deprecated is not None and Version(version) >= row.deprecated
            if seen in "YD":
                assert deprecated == (seen == "D"), (row.name, version)


@measured
def test_versions_are_those_measured() -> None:
    with (FACTS / "vllm_pins.tsv").open(encoding="utf-8") as file:
        pins = {row["vllm"]: row for row in csv.DictReader(file, delimiter="\t")}
    table = {str(row.vllm): row for row in tables.vllm_versions().versions}
    assert set(pins) <= set(table)
    for version, pin in pins.items():
        row = table[version]
        assert pin["cuda_of_that_torch"].startswith(f"{row.cuda[0]}.{row.cuda[1]}"), version
        assert pin["torch"][:3] == str(row.torch)[:3], version
        assert str(row.python) == str(type(row.python)(pin["requires_python"])), version
