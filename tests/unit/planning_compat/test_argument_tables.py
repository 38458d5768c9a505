"""engine.args over all versions of the tables: what each has, and that the tables agree."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from packaging.version import Version

from pyinfra_deploy.planning import serve_flags, tables
from pyinfra_deploy.planning.compatibility_arguments import argument_findings, gone_advice
from pyinfra_deploy.planning.serve_flags import parse
from pyinfra_deploy.planning.tables import TableError

if TYPE_CHECKING:
    from pyinfra_deploy.planning.finding import Finding
    from pyinfra_deploy.settings.schema import Settings

SEEN = Path(__file__).parents[2] / "fixtures/vllm/flags_by_version.tsv"
WHOLE = serve_flags.serve_flags()


def seen() -> dict[str, dict[str, str]]:
    lines = [line for line in SEEN.read_text().splitlines() if not line.startswith("#")]
    rows = csv.DictReader(lines, delimiter="\t")
    return {row.pop("flag"): row for row in rows}


MATRIX = seen()
VERSIONS = list(next(iter(MATRIX.values())))


def findings(version: str, **args: Any) -> list[Finding]:
    """Past the schema, which does not let every argument through."""
    settings = SimpleNamespace(engine=SimpleNamespace(args=args), runtime=None)
    found = argument_findings("gpu01", cast("Settings", settings), Version(version))
    return [one for one in found if one.id != "compat.argument-combination"]


def value_for(name: str) -> Any:
    row = WHOLE.flags.get(name.removeprefix("no-"))
    cells = [cell for cell in (row or {}).values() if cell is not None]
    return True if cells and cells[0].kind in ("boolean", "switch") else "x"


def expected(name: str, version: str) -> set[tuple[str, str]]:
    """(id, severity), from what was seen in this version and in the later ones."""
    marks = MATRIX[name]
    if marks[version] == "Y":
        return set()
    if marks[version] == "D":
        return {("compat.argument-deprecated", "warn")}
    later = any(marks[one] != "-" for one in VERSIONS[VERSIONS.index(version) :])
    ever = any(mark != "-" for mark in marks.values())
    word = "not-yet" if later else "gone" if ever else "never"
    return {(f"compat.argument-{word}", "refuse")}


@pytest.mark.parametrize("version", VERSIONS)
def test_each_argument_in_each_version_that_was_looked_at(version: str) -> None:
    assert len(MATRIX) == 63
    for name in MATRIX:
        found = {(one.id, one.severity) for one in findings(version, **{name: value_for(name)})}
        assert found == expected(name, version), name


@pytest.mark.parametrize("version", [str(one) for one in WHOLE.versions])
def test_all_that_a_version_has_is_let_through(version: str) -> None:
    for name in WHOLE.names(Version(version)):
        cell = WHOLE.cell(name, Version(version))
        assert cell is not None
        value = True if cell.kind in ("boolean", "switch", "optional") else "x"
        found = [one.id for one in findings(version, **{name: value})]
        assert found == (["compat.argument-deprecated"] if cell.deprecated else []), name
        if cell.kind == "boolean":
            assert [one.severity for one in findings(version, **{f"no-{name}": True})] in (
                [],
                ["warn"],
            )


@pytest.mark.parametrize("version", [str(one) for one in WHOLE.versions])
def test_what_a_version_lacks_is_refused_by_name(version: str) -> None:
    lacking = set(WHOLE.flags) - set(WHOLE.names(Version(version)))
    assert lacking
    for name in lacking:
        (finding,) = findings(version, **{name: "x"})
        assert finding.severity == "refuse", name
        assert finding.id in ("compat.argument-gone", "compat.argument-not-yet"), name
        assert finding.fix, name


def test_the_two_tables_agree_wherever_both_have_looked() -> None:
    for row in tables.engine_arguments().arguments:
        for version in WHOLE.versions:
            has = row.place(version) == "there" and not row.never
            cell = WHOLE.cell(row.name, version)
            assert has == (cell is not None), (row.name, version)
            if cell is not None:
                deprecated = row.deprecated is not None and version >= row.deprecated
                assert deprecated == cell.deprecated, (row.name, version)


def test_what_replaced_an_argument_is_there_and_the_argument_is_gone() -> None:
    last = WHOLE.versions[-1]
    for row in tables.engine_arguments().replaced:
        assert WHOLE.known_anywhere(row.name), row.name
        assert WHOLE.cell(row.name, last) is None, row.name
        if row.instead is not None:
            assert WHOLE.cell(row.instead, last) is not None, row.name


def test_every_argument_that_is_gone_and_has_a_successor_says_which_and_since_when() -> None:
    (finding,) = findings("0.33.0", **{"num-redundant-experts": 2})
    assert finding.fix == (
        "eplb-config takes its place (not yet in 0.10.1.1, there in 0.11.2): write eplb-config: "
        "{num_redundant_experts: N}"
    )
    (finding,) = findings("0.33.0", task="generate")
    assert "runner takes its place (not yet in 0.10.0, there in 0.10.1.1)" in finding.fix


@pytest.mark.parametrize(
    ("version", "name", "identifier", "severity", "says"),
    [
        ("0.30.0", "log-level", "argument-unknown", "warn", "between vLLM 0.28.0 and 0.32.0"),
        ("0.12.0", "cuda-graph-sizes", "argument-unknown", "warn", "went between vLLM 0.11.2"),
        ("0.30.0", "nonsense-flag", "argument-misspelt", "warn", "neither vLLM 0.28.0 nor 0.32.0"),
        ("0.9.0", "cuda-graph-sizes", "argument-unknown", "note", "were not read"),
        ("0.40.0", "log-level", "argument-unknown", "note", "it is in 0.32.0, 0.33.0"),
        ("0.40.0", "log-levels", "argument-unknown", "warn", "is log-level meant?"),
        ("0.33.0", "max-num-seq", "argument-misspelt", "refuse", "no argument max-num-seq"),
        ("0.33.0", "no-disable-log-stats", "argument-misspelt", "refuse", "off unless it is set"),
    ],
)
def test_what_is_not_known_is_said_and_never_guessed(
    version: str, name: str, identifier: str, severity: str, says: str
) -> None:
    (finding,) = findings(version, **{name: True})
    assert (finding.id, finding.severity) == (f"compat.{identifier}", severity)
    assert says in finding.message


def test_a_name_cut_short_is_not_taken_for_the_whole() -> None:
    (finding,) = findings("0.33.0", **{"max-num-batched": 5})
    assert finding.severity == "refuse"


def test_advice_for_the_host_names_only_what_is_gone() -> None:
    advice = gone_advice(
        {"swap-space": 4, "eplb-step-interval": 3, "max-model-len": 5, "nonsense": 1},
        Version("0.33.0"),
    )
    assert set(advice) == {"swap-space", "eplb-step-interval"}
    assert "last seen in 0.17.1" in advice["swap-space"]


GOOD = (
    "# source of 1.0: a\n# source of 1.2: b\nargument\t1.0\t1.2\n"
    "a\tvalue:int 1\tboolean! None\nb\t=a\t-\n"
)


def test_a_table_is_read_with_its_other_names() -> None:
    table = parse(GOOD)
    main, other = (table.cell(name, Version("1.0")) for name in ("a", "b"))
    assert main is not None
    assert other == replace(main, owner="a")
    assert table.cell("no-a", Version("1.0")) is None
    cell = table.cell("no-a", Version("1.2"))
    assert cell is not None
    assert (cell.kind, cell.deprecated, cell.default) == ("boolean", True, "None")
    assert table.place("b", Version("1.1")) == "between"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("argument\t1.0\t1.2", "argument\t1.2\t1.0"),
        ("argument\t", "flag\t"),
        ("b\t=a\t-", "b\t=c\t-"),
        ("b\t=a\t-", "b\t-"),
        ("b\t=a\t-", "a\t-\t-"),
        ("# source of 1.2: b\n", ""),
    ],
)
def test_wrong_tables_are_refused(old: str, new: str) -> None:
    assert old in GOOD
    with pytest.raises(TableError, match=r"vllm_serve\.tsv"):
        parse(GOOD.replace(old, new))
