"""Our tables and our reader against real vLLMs: two wheels that the locks name by their hashes.

Each is downloaded once, without what it depends on, and its source kept in .fleet/wheels; others of
locks/flag_table.py are compared too where they are there already. FLEET_OFFLINE=1 leaves out what
cannot be downloaded; else that is a failure.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host.flag_check import wrong_arguments
from fleet_host.vllm_flags import read_flags
from packaging.version import Version

from locks import flag_table
from pyinfra_deploy.planning import tables
from pyinfra_deploy.planning.flag_difference import difference
from pyinfra_deploy.planning.serve_flags import serve_flags
from pyinfra_deploy.settings.engine_arguments import OWNED
from tests import vllm_parser

if TYPE_CHECKING:
    from collections.abc import Mapping

# Without it a wheel that cannot be had is a failure: nobody looks at what is left out.
OFFLINE = "FLEET_OFFLINE"
# What CI downloads.
DOWNLOADED = ("0.28.0", "0.32.0")
WHEELS = {wheel.version: wheel for wheel in flag_table.WHEELS}


@pytest.fixture(scope="module")
def real() -> dict[str, dict[str, Any]]:
    """Version -> what was read of its source."""
    found = {}
    for version, wheel in WHEELS.items():
        if version not in DOWNLOADED and not (wheel.place / "complete").is_file():
            continue
        try:
            found[version] = read_flags(flag_table.fetch(wheel))
        except flag_table.WheelError as error:
            reason = f"vLLM {version} could not be downloaded: {error}"
            if os.environ.get(OFFLINE) != "1":
                pytest.fail(f"{reason}\nWithout internet set {OFFLINE}=1: then this is left out.")
            pytest.skip(reason)
    return found


def test_two_real_versions_were_read(real: Mapping[str, Any]) -> None:
    assert set(DOWNLOADED) <= set(real)
    for version, read in real.items():
        assert Version(str(read["version"])).base_version == version
        assert len(read["flags"]) > 150


def test_the_table_of_all_arguments_says_the_same(real: Mapping[str, Any]) -> None:
    table = serve_flags()
    for version, read in real.items():
        expected = flag_table.columns(read)
        assert set(table.names(Version(version))) == set(expected), version
        for name, cell in expected.items():
            seen = table.cell(name, Version(version))
            assert seen is not None
            main = cell[1:] if cell.startswith("=") else name
            flag = read["flags"][main]
            assert (seen.kind, seen.deprecated) == (flag["kind"], bool(flag["deprecated"])), name
            assert seen.default == " ".join(str(flag["default"]).split()), name


@pytest.mark.parametrize("version", DOWNLOADED)
def test_the_source_says_what_the_parser_said(real: Mapping[str, Any], version: str) -> None:
    """Names, kinds, choices, and the defaults that are written out."""
    parser = vllm_parser.recorded(version)
    assert vllm_parser.with_reader(real[version]["flags"], parser) == []


def test_the_table_over_many_versions_does_not_disagree(real: Mapping[str, Any]) -> None:
    for version, read in real.items():
        for row in tables.engine_arguments().arguments:
            has = row.place(Version(version)) == "there" and not row.never
            wrong = wrong_arguments({row.name: _value_of(row.name, read)}, read["flags"], {})
            assert has == (not wrong), (version, row.name, wrong)


def _value_of(name: str, read: Mapping[str, Any]) -> Any:
    flag = read["flags"].get(name.removeprefix("no-"), {})
    if flag.get("kind") in ("boolean", "switch"):
        return True
    if flag.get("choices"):
        return flag["choices"][0]
    return {"json": "{}", "int": 1, "float": 1.0}.get(str(flag.get("type")), "x")


def test_what_the_schema_keeps_for_itself_is_there_to_be_kept(real: Mapping[str, Any]) -> None:
    """A name of OWNED that no version knows would be a misspelling of ours."""
    known = {name for read in real.values() for name in flag_table.columns(read)}
    known |= set(serve_flags().flags)
    assert set(OWNED) - known == {"model-tag"}


@pytest.mark.parametrize("version", DOWNLOADED)
@pytest.mark.parametrize(
    "mistake",
    ["disable-log-requests", "swap-space", "guided-decoding-backend", "enable-metrics",
     "max-model-lens", "no-disable-log-stats", "max-num-batched"],
)  # fmt: skip
def test_arguments_that_a_new_vllm_does_not_know(
    real: Mapping[str, Any], version: str, mistake: str
) -> None:
    (wrong,) = wrong_arguments({mistake: True}, real[version]["flags"], {})
    assert wrong.key == mistake


def test_what_an_upgrade_changes(real: Mapping[str, Any]) -> None:
    before, after = (real[version]["flags"] for version in DOWNLOADED)
    found = difference(before, after, ["disable-cascade-attn", "enable-bf16x3-router-gemm"])
    assert found.gone == ("enable-bf16x3-router-gemm",)
    assert len(found.new) == 33
    assert "disable-cascade-attn is on its way out" in found.yours[0]
    assert found.defaults["cp-kv-cache-interleave-size"] == ("1", "None")
