"""Dependencies point one way, deciding does no I/O, and what is copied to hosts stands alone.

cli -> rollout, runbooks -> deploys -> operations -> facts, planning, keys -> settings
"""

from __future__ import annotations

import ast
import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.unit.tree.sources import ROOT, Import, imports, parsed, python_files, where

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = "pyinfra_deploy"
# Rank of each room; a room imports from lower ranks only. Modules beside the rooms are commands.
RANKS = {"settings": 0, "keys": 1, "facts": 1, "planning": 1, "operations": 2, "deploys": 3,
         "rollout": 4, "runbooks": 4}  # fmt: skip
COMMANDS = 5
# Of one rank, who may import whom nevertheless: decisions are about a host's hardware and a model's
# documents, whose shapes are where they are read.
SHAPES = {f"{PACKAGE}.facts.hardware", f"{PACKAGE}.facts.model_documents"}
BESIDE = {("planning", "facts"): SHAPES}

# All that deciding needs: nothing here opens a file, a socket or a process, or tells the time.
PURE = {
    *(
        "__future__",
        "abc",
        "bisect",
        "collections",
        "dataclasses",
        "datetime",
        "decimal",
        "difflib",
    ),
    *("enum", "fnmatch", "fractions", "functools", "hashlib", "itertools", "json", "math"),
    *("operator", "re", "statistics", "string", "textwrap", "types", "typing"),
    *("ipaddress", "packaging", "pydantic", "urllib.parse", "yaml"),
}
# Read what ships with the code, once and the same for every host.
READS_ITS_OWN_FILES = {
    f"{PACKAGE}/planning/nginx_build.py": {"pathlib", "jinja2"},
    f"{PACKAGE}/planning/tables/__init__.py": {"pathlib"},
}
IMPURE_CALLS = {"open", "now", "today", "utcnow", "getenv", "print", "input", "read_text",
                "read_bytes", "write_text", "glob"}  # fmt: skip


def room(module: str) -> str:
    """`planning` of pyinfra_deploy.planning.release, `` of pyinfra_deploy.cli."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in RANKS else ""


def rank(module: str) -> int:
    return RANKS.get(room(module), COMMANDS)


def ours(found: tuple[Import, ...], package: str = PACKAGE) -> list[Import]:
    return [one for one in found if one.name == package or one.name.startswith(f"{package}.")]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_imports_go_down() -> None:
    wrong = []
    for path in python_files(PACKAGE):
        module = module_of(path)
        for one in ours(imports(path)):
            if one.name == PACKAGE or room(one.name) == room(module):
                continue
            beside = BESIDE.get((room(module), room(one.name)), set())
            if rank(one.name) >= rank(module) and one.name not in beside:
                wrong.append(f"{where(path, one.line)} imports {one.name}")
    assert wrong == []


def test_deciding_does_no_io() -> None:
    wrong = []
    for path in python_files(
        f"{PACKAGE}/planning", *(f"{name.replace('.', '/')}.py" for name in SHAPES)
    ):
        extra = READS_ITS_OWN_FILES.get(path.relative_to(ROOT).as_posix(), set())
        wrong += [
            f"{where(path, one.line)} imports {one.name}"
            for one in imports(path)
            if one.runtime
            and not {one.name, one.name.split(".")[0]} & (PURE | extra)
            and not one.name.startswith((f"{PACKAGE}.planning", f"{PACKAGE}.settings"))
            and one.name not in {PACKAGE, f"{PACKAGE}.facts", *SHAPES}
        ]
        for node in () if extra else ast.walk(parsed(path)):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in IMPURE_CALLS:
                    wrong.append(f"{where(path, node.lineno)} calls {name}()")
    assert wrong == []


def test_what_reads_its_own_files_still_does() -> None:
    for name, modules in READS_ITS_OWN_FILES.items():
        assert modules <= {one.name.split(".")[0] for one in imports(ROOT / name)}


@pytest.mark.parametrize(
    ("directory", "package", "others"),
    [
        ("files/fleet_host", "fleet_host", set()),
        (
            "gateway/llm_gateway",
            "llm_gateway",
            {"uvicorn", "uvloop", "aiohttp", "yarl", "prometheus_client"},
        ),
    ],
)
def test_what_is_copied_to_hosts_stands_alone(
    directory: str, package: str, others: set[str]
) -> None:
    paths = python_files(directory)
    assert paths
    allowed = sys.stdlib_module_names | others | {package, "__future__", directory.split("/")[0]}
    wrong = [
        f"{where(path, one.line)} imports {one.name}"
        for path in paths
        for one in imports(path)
        if one.runtime and one.name.split(".")[0] not in allowed
    ]
    assert wrong == []


def test_the_product_knows_neither_its_lab_nor_its_tests() -> None:
    paths = python_files(PACKAGE, "files", "gateway", "deploy.py", "inventories")
    wrong = [
        f"{where(path, one.line)} imports {one.name}"
        for path in paths
        for one in imports(path)
        if one.name.split(".")[0] in ("lab", "tests", "locks")
    ]
    assert wrong == []


def test_pyinfras_command_line_is_imported_in_one_place_at_most() -> None:
    """It is no public interface: one place to mend when pyinfra changes."""
    users = {
        path.name
        for path in python_files(PACKAGE)
        for one in imports(path)
        if one.name.split(".")[0] == "pyinfra_cli"
    }
    assert len(users) <= 1, users


def test_unit_tests_need_nothing_of_the_slower_ones() -> None:
    slower = re.compile(r"^ *(?:from|import) tests\.(?:integration|hosts)\b", re.MULTILINE)
    paths = python_files("tests/unit", "tests/fakes")
    assert [path for path in paths if slower.search(path.read_text())] == []
